"""From the training run to the model in the package: 16-bit weights, and a card with figures that are measured here.

    python tools/tiny_en.py data/text runs/tiny-en/data
    unmask train tools/tiny_en.yaml --out runs/tiny-en/whole
    unmask finetune runs/tiny-en/whole block --data runs/tiny-en/data --out runs/tiny-en/run WORDS
    python tools/publish_tiny_en.py runs/tiny-en/run runs/tiny-en/data

WORDS are those of BLOCKS and of a sitting. Sittings follow each other: from the second on, each begins with the weights
of the package (`unmask finetune tiny-en block`), in 16 bits. The figures are those of the 16-bit weights, as a user
loads them.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

from unmask.config import DataConfig
from unmask.data.pack import prepare
from unmask.evaluation.estimators import default_estimator
from unmask.evaluation.likelihood import evaluate
from unmask.hub import model_card
from unmask.hub.resolve import PRETRAINED, checkpoint, load
from unmask.lm import LM
from unmask.models.block_diffusion import BlockDiffusion
from unmask.sampling.recommended import Recommended
from unmask.types import Likelihood

NAME = "tiny-en"
SOURCE = "tinystories"
WHOLE = 2666  # steps as an MDLM
BLOCKS = "block.size=4 train.batch_size=16 train.optimizer=muon train.betas=[0.9,0.98] train.decay=wsd train.ema=0."
RATES = "train.muon_lr=0.014 train.lr=0.0014 train.warmup=20"
SITTINGS = (  # steps, shares of blocks of 1, 4 and 16 tokens and of whole rows (block.mixture), and more words
    (1600, (0.3, 0.2, 0.15, 0.35), "train.muon_lr=0.02 train.lr=0.002 train.warmup=30 train.decay_share=0.4"),
    (800, (0.25, 0.15, 0.1, 0.5), f"{RATES} train.decay_share=0.6 seed=3"),
    (1000, (0.25, 0.1, 0.1, 0.55), f"{RATES} train.decay_share=0.7 seed=4"),
    (1100, (0.5, 0.1, 0.05, 0.35), f"{RATES} train.decay_share=0.7 seed=5"),
)
PROMPTS = (
    "Once upon a time, there was a little",
    "One day, a boy named Tim",
    "Lily and Ben were playing in the park.",
    "The big dog",
    "",
)
GAPS = (
    "Once upon a time, there was a {{1}} named {{1}}. He liked to {{3}} in the park.",
    'Sara was sad because {{6}}. Her mom said, "{{5}}."',
    "The {{1}} was very {{1}}. It wanted to eat the {{1}}.",
    "{{12}} Then they went home and ate dinner.",
)
EACH = {"samples": 4, "gaps": 5}  # of every prompt, of every text with gaps: twenty of both
RECOMMENDED = Recommended(  # measured by benchmarks/recommend.py; docs/tiny-en.md has the table
    {"temperature": 0.9, "top_p": 0.9, "steps": 256, "stop_at_eos": True},
    "The beginning of a story for small children, in simple words.",
    (
        "Once upon a time, there was a little girl named Lily.",
        "One day, a boy named Tim",
        "The big dog",
    ),
    "Once upon a time, there was a little {{1}} named {{1}}. She loved to play with her {{1}} in the {{1}}. "
    "One day, she saw a big {{1}} and was very {{1}}.",
)


LAWS = {"in blocks of 1": 1, "in blocks of 4": 4, "in blocks of 16": 16, "as one block": None}


def held_out(lm: LM, folder: str, size: int | None) -> Likelihood:
    """The bound on all stories of TinyStories' validation file, in blocks of this size."""
    assert isinstance(lm.model, BlockDiffusion)
    model = lm.model.in_blocks(size)
    data = DataConfig.model_validate({**lm.config.data.model_dump(), "source": folder})
    rows = prepare(data, lm.tokenizer, splits=("valid",)).split("valid", rest=True)
    return evaluate(
        model,
        rows,
        draws=10 if size is None else 2,
        batch_size=64,
        estimator=default_estimator(model),
        protocol={"source": "the 785 whole stories of TinyStories' validation file"},
    )


def samples(lm: LM) -> str:
    """What it writes, not chosen: the first seeds of each prompt and of each text with gaps."""
    lines = ["## Samples", "", f"Not chosen: seeds 0 to {EACH['samples'] - 1}, with the recommended settings.", ""]
    for prompt in PROMPTS:
        for text in lm.sample(EACH["samples"], prompt=prompt, seed=0):
            lines += ["> " + " ".join(text.split()), ""]
    for gap in GAPS:
        lines += [f"`{gap}`:", ""]
        lines += ["> " + " ".join(text.split()) + "\n" for text in lm.infill(gap, n=EACH["gaps"], seed=0)]
    return "\n".join(lines).rstrip()


def sittings() -> str:
    """The trainings in blocks as text."""
    return ", then\n".join(
        f"{steps:,} steps with shares of {', '.join(map(str, shares))}" for steps, shares, _ in SITTINGS
    )


ABOUT = """
A small model to try things with: it comes inside the package `unmask` and needs no network. It tells stories for small
children and fills gaps in them: one network that writes from left to right, in blocks of any size, and anywhere in a
text. It has seen {tokens:.1f} million tokens on one CPU core.

## Data

TinyStories (CDLA-Sharing-1.0, which leaves what is computed from the data free), 12,028 stories of 9.7 million
characters: quotes and dashes as on a keyboard, no story twice. BPE of 4,096 tokens, trained on the same text; rows of
256 tokens, wrapped, an end-of-text token between stories. `tools/tiny_en.py` makes the text, `tools/tiny_en.yaml` are
the settings of the training, `tools/publish_tiny_en.py` made this card.

## Training

First as an MDLM, {whole:,} steps of 16 rows of 256 tokens. Then in blocks of 1, 4 and 16 tokens and of whole rows:
{sittings}.
Embeddings from counts, Muon for the matrices of the blocks and AdamW for the rest, plain cross-entropy of the masked
tokens, each time a constant learning rate with a linear decay at the end; one seed.
The weights are stored in float16, and that is how they were evaluated.

## Limits

- It knows the words of small children and nothing of the world; names, facts and endings are invented.
- The stories were written by larger language models: it repeats their habits (a girl named Lily, a moral at the end).
- 256 tokens at a time; longer text is written in windows (`--stride`).
- One training, so no error bar holds the chance of training.

{samples}
"""

BUILT_IN = {  # the card is that of a model on the Hub; this one is a folder of the package
    "is not needed: `pip install unmask`.": "is not needed.",
    "from transformers import AutoModelForMaskedLM, AutoTokenizer, pipeline\n": (
        "from transformers import AutoModelForMaskedLM, AutoTokenizer, pipeline\nfrom unmask.hub import find\n"
    ),
    f'from_pretrained("{NAME}")': f'from_pretrained(find("{NAME}"))',
}


def main() -> None:
    run, folder = Path(sys.argv[1]), sys.argv[2]
    trained = load(run)
    steps = int(checkpoint.resolve(run).name.removeprefix("step-"))  # a training may have been meant to go on
    data = trained.config.data.model_copy(update={"source": SOURCE, "cache": None})
    train = trained.config.train.model_copy(update={"steps": steps, "start": None})
    block = trained.config.block.model_copy(update={"size": 1})  # by which it tells its best stories
    config = trained.config.model_copy(update={"data": data, "train": train, "block": block})
    out = PRETRAINED / NAME
    shutil.rmtree(out, ignore_errors=True)
    replace(trained, config=config, recommended=RECOMMENDED).save_pretrained(out, dtype="float16")
    lm = load(out)
    assert steps == SITTINGS[-1][0], "the last sitting is not that of the run"
    seen = WHOLE + sum(steps for steps, *_ in SITTINGS)
    tokens = seen * config.train.batch_size * config.data.length / 1e6
    figures = {f"TinyStories, validation stories, {law}": held_out(lm, folder, size) for law, size in LAWS.items()}
    notes = ABOUT.format(tokens=tokens, whole=WHOLE, sittings=sittings(), samples=samples(lm))
    card = model_card(
        config,
        NAME,
        license="apache-2.0",
        figures=figures,
        notes=notes,
        parameters=sum(p.numel() for p in lm.model.parameters()),
        language=["en"],
        datasets=["roneneldan/TinyStories"],
        recommended=RECOMMENDED,
    )
    for old, new in BUILT_IN.items():
        card = card.replace(old, new)
    (out / "README.md").write_text(card, encoding="utf-8")


if __name__ == "__main__":
    main()
