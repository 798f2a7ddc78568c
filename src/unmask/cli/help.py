"""What `--help` shows besides the options: examples of every command, and no type behind a switch."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

EXAMPLES: dict[str, tuple[str, ...]] = {
    "unmask": (
        "unmask sample tiny-en --prompt 'Once upon a time'",
        "unmask serve tiny-en",
        "unmask train tiny data.source=my.txt --out runs/mine",
    ),
    "train": (
        "unmask train tiny data.source=my.txt --out runs/mine",
        "unmask train tiny data.source=my.txt model.method=sedd train.steps=5000 --out runs/sedd",
        "unmask train dna-tiny data.source=genome.fa.gz --out runs/dna",
        "unmask train runs/mine/config.yaml train.steps=20000 --out runs/longer",
    ),
    "finetune": (
        "unmask finetune bert-base-uncased mdlm --data my.txt --out runs/bert",
        "unmask finetune runs/bert glue/sst2 --local GLUE",
        "unmask finetune tiny-en mdlm --data my.txt train.steps=500 --out runs/mine",
    ),
    "eval": (
        "unmask eval runs/mine --split test --draws 8",
        "unmask eval tiny-en --data my.txt",
        "unmask eval runs/mine --generative -n 64",
    ),
    "sample": (
        "unmask sample tiny-en --prompt 'Once upon a time' -n 3",
        "unmask sample tiny-en --infill 'Tim saw a {{1}} in the {{1-3}}.' --watch",
        "unmask sample tiny-en --sampler confidence --steps 16 --html replay.html",
        "unmask sample runs/mine --length 4096 --stride 32",
    ),
    "fill": (
        "unmask fill tiny-en",
        "echo 'The {{1}} dog ran to the {{2}}.' | unmask fill tiny-en -n 3",
    ),
    "chat": (
        "unmask chat tiny-en --template plain",
        "unmask chat runs/mine --system 'Answer in one sentence.' --max-tokens 64",
        "echo 'Who are you?' | unmask chat runs/mine --json",
    ),
    "score": (
        "unmask score tiny-en 'The little dog was happy.'",
        "unmask score runs/mine --file texts.txt --json",
    ),
    "marginals": (
        "unmask marginals tiny-en 'The {{1}} dog ran to the {{2}}.'",
        "unmask marginals runs/mine 'One {{1}}.' --top 20 --json",
    ),
    "choose": (
        "unmask choose tiny-en 'Tom lost his ball. He was very {{}}.' --choices happy --choices sad",
        "unmask choose runs/mine 'The answer is' --choices yes --choices no --json",
    ),
    "serve": (
        "unmask serve tiny-en",
        "unmask serve tiny-en runs/mine --port 8080 --batch-size 16",
        "unmask serve tiny-en --template plain",
    ),
    "variants": ("unmask variants runs/dna --vcf my.vcf --genome genome.fa.gz --out effects.tsv",),
    "embed": (
        "unmask embed runs/dna sequences.fa --out vectors.npy",
        "unmask embed runs/dna regions.bed --genome genome.fa.gz --out vectors.parquet",
    ),
    "compare": ("unmask compare generated.fa genome.fa.gz",),
    "reproduce": (
        "unmask reproduce ablation",
        "unmask reproduce lm --scale small --data my.txt --out runs/paper",
    ),
    "demo": ("unmask demo", "unmask demo train.steps=500 --out runs/short"),
    "convert": (
        "unmask convert runs/mine portable/mine",
        "unmask convert model.ckpt runs/paper",
    ),
    "data": ("unmask data list", "unmask data show my.txt"),
    "list": ("unmask data list",),
    "show": ("unmask data show my.txt data.length=64", "unmask data show ptb data.local=DATA"),
    "prepare": ("unmask data prepare owt",),
}


def _prepare(command: Any, params: list[Any]) -> list[Any]:
    """A switch takes no value, so no type is shown for it; an option that is repeated takes one value at a time."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
        elif getattr(param, "multiple", False) and param.metavar is None:
            param.metavar = "<str>"
    lines = EXAMPLES.get(command.name or "", ())
    command.epilog = "\n".join(["Examples:", *(f"  {line}" for line in lines)]).replace("[", "\\[") if lines else None
    return params


class HelpfulCommand(TyperCommand):
    """A command whose help ends in examples."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: D102
        return _prepare(self, super().get_params(ctx))


class HelpfulGroup(TyperGroup):
    """A group of commands, likewise."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: D102
        return _prepare(self, super().get_params(ctx))
