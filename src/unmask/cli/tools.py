"""Tables of the paper, the demo, and tools: `unmask reproduce`, `lm-eval`, `demo`, `convert` and `data`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..jsonable import described
from .shared import Json, Overrides, Weights, err_console, out_console, print_json, print_lines


def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="ablation, schedules, steps, time-conditioning, lm, caching, semi-ar, variance-curve, zero-shot, "
            "bert, glue, encoder, dna, genomics or dna-curves."
        ),
    ],
    scale: Annotated[
        str, typer.Option(help="smoke (minutes), small (an hour or so), medium (hours) or paper (a cluster).")
    ] = "smoke",
    data: Annotated[str, typer.Option(help="The text: a name, a file or a folder; dna: a FASTA file.")] = "python-docs",
    out: Annotated[str, typer.Option(help="Folder of models and reports; tables share the models in it.")] = (
        "runs/reproduce"
    ),
    seed: Annotated[int, typer.Option(help="Seed of trainings and evaluations.")] = 0,
    scorer: Annotated[str | None, typer.Option(help="Judge of samples, as for unmask eval --generative.")] = None,
    local: Annotated[
        str | None,
        typer.Option(help="Where sets of zero-shot, GLUE, or tasks on DNA lie (default: UNMASK_DATA, else the Hub)."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="encoder: a BERT, as for unmask finetune.")] = None,
    in_domain: Annotated[
        list[str] | None, typer.Option(help="zero-shot: a set that the text is made from (may be repeated).")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    as_json: Json = False,
) -> None:
    """Re-create a table of the paper, beside the paper's figures: trains what it needs, writes report.md and plots."""
    from ..reproduce import reproduce as run
    from ..reproduce.bench import Missing
    from ..reproduce.report import terminal_lines

    try:
        report, page = run(
            name,
            scale=scale,
            data=data,
            out=out,
            seed=seed,
            scorer=scorer,
            local=local,
            known=in_domain or (),
            start=model,
            quiet=quiet,
        )
    except Missing as missing:  # the paper's scale: what to run, and then this command again
        if as_json:
            print_json({"missing": str(missing).splitlines()})
        else:
            out_console.print(str(missing), markup=False)
            err_console.print("train these on a cluster, then run the same command again", markup=False)
        return
    if as_json:
        print_json(described(report))
        return
    print_lines(terminal_lines(report))
    err_console.print(f"report: {page}", markup=False)


def lm_eval(context: typer.Context) -> None:
    """Run the lm-evaluation-harness, which then knows --model unmask."""
    from ..hub.lm_eval import main as run

    run(context.args)


def demo(
    overrides: Overrides = None,
    out: Annotated[str, typer.Option(help="Folder of the run.")] = "runs/demo",
) -> None:
    """Train the demo model on Python's documentation, and show what it can do."""
    from .demo import run

    run(out, overrides or [])


def convert(
    source: Annotated[str, typer.Argument(help="A run, a folder, a .ckpt, .bin or .pt file, or a Hub id.")],
    out: Annotated[str, typer.Argument(metavar="DIR", help="The folder to write; nothing is overwritten.")],
    tokenizer: Annotated[str | None, typer.Option(help="For models without one: a folder, file or Hub name.")] = None,
    weights: Weights = "ema",
    to: Annotated[str, typer.Option(help="unmask (a folder that travels) or published (MDLM's layout).")] = "unmask",
    dtype: Annotated[str, typer.Option(help="float32, float16 or bfloat16.")] = "float32",
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a Hub model.")] = None,
    new_head: Annotated[
        bool, typer.Option("--new-head", help="Give an encoder without a masked-LM head a fresh one, to be trained.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a folder that travels of a run, a published model or a Lightning checkpoint; nothing in it is executed."""
    from ..hub.convert import convert as run

    done = run(
        source, out, tokenizer=tokenizer, weights=weights, to=to, dtype=dtype, revision=revision, new_head=new_head
    )
    if as_json:
        print_json(done)
        return
    what = f"{done['method']}, {done['parameters']:,} weights ({done['weights']}), tokenizer {done['tokenizer']}"
    out_console.print(f"wrote {done['out']}: {what}", markup=False)
    if done["unsaid"]:
        lost = ", ".join(f"{name}={value}" for name, value in done["unsaid"].items())
        out_console.print(f"its config.json cannot say {lost}: readers, unmask too, take the paper's", markup=False)


data_app = typer.Typer(help="Data sets: list, show, prepare.", no_args_is_help=True)
DataOverrides = Annotated[list[str] | None, typer.Argument(help="Settings as data.key=value, as data.length=64.")]
Source = Annotated[str, typer.Argument(help="A named data set, a file, a folder or a Hub data set.")]
ZeroShot = Annotated[
    bool, typer.Option("--zero-shot", help="The paper's zero-shot settings (gpt2 tokens, no EOS between documents).")
]


@data_app.command("list")
def data_list(as_json: Json = False) -> None:
    """The named data sets, with the paper's conventions for each."""
    from .data_commands import lines_of_list, list_sets

    found = list_sets()
    _print_data(found, lines_of_list(found), as_json)


@data_app.command("show")
def data_show(
    source: Source,
    overrides: DataOverrides = None,
    split: Annotated[str | None, typer.Option(help="train, valid or test (default: the first that is there).")] = None,
    n: Annotated[int, typer.Option("-n", help="How many texts and rows.")] = 3,
    zero_shot: ZeroShot = False,
    as_json: Json = False,
) -> None:
    """How text becomes rows: raw, detokenized, in tokens, as it enters the network; and counts."""
    from ..progress import progress_bar
    from .data_commands import lines_of_show, settings_for, show

    with progress_bar("tokenizing") as progress:
        found = show(settings_for(source, overrides or [], zero_shot), split, n, progress)
    _print_data(found, lines_of_show(found), as_json)


@data_app.command("prepare")
def data_prepare(
    source: Source,
    overrides: DataOverrides = None,
    split: Annotated[list[str] | None, typer.Option(help="Only this split (may be repeated).")] = None,
    zero_shot: ZeroShot = False,
    as_json: Json = False,
) -> None:
    """Tokenize a data set into the cache; prints its folder and counts."""
    from ..progress import progress_bar
    from .data_commands import lines_of_prepare, prepare_set, settings_for

    with progress_bar("tokenizing") as progress:
        found = prepare_set(settings_for(source, overrides or [], zero_shot), split, progress)
    _print_data(found, lines_of_prepare(found), as_json)


def _print_data(found: Any, lines: list[str], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    print_lines(lines)
