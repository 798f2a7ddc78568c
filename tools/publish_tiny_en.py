"""From the training run to the model in the package: 16-bit weights, and a card with figures that are measured here.

    python tools/tiny_en.py data/text runs/tiny-en/data
    unmask reproduce zero-shot --scale medium --data runs/tiny-en/data --out runs/tiny-en/tables \
        --local data/text --in-domain wikitext2
    python tools/publish_tiny_en.py runs/tiny-en/tables/medium/data/models/mdlm-longer data/text

The figures are those of the 16-bit weights, as a user loads them.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

from unmask.config import DataConfig
from unmask.data.pack import prepare
from unmask.evaluation.likelihood import TIMES, evaluate
from unmask.evaluation.suites import Member, evaluate_suite, suite
from unmask.hub import model_card
from unmask.hub.resolve import PRETRAINED, checkpoint, load
from unmask.lm import LM
from unmask.sampling.recommended import Recommended
from unmask.types import Likelihood

NAME = "tiny-en"
SOURCE = "sotu+wikitext2+tinystories"
HELD_OUT = Path("runs/tiny-en/held-out")
KINDS = {
    "sotu": "held-out speeches",
    "wikitext2": "WikiText-2 validation articles, as trained",
    "tinystories": "held-out stories",
}
DRAWS, ROWS = 5, 512
TASKS = (
    ("prompt", "Once upon a time, there was a little", 64),
    ("prompt", "The Congress of the United States", 64),
    ("prompt", "The river is", 64),
)
GAP = "Once upon a time, there was a {{1}} named {{1}}. He liked to {{3}} in the park."
RECOMMENDED = Recommended(  # measured by benchmarks/recommend.py; docs/tiny-en.md has the table
    {"temperature": 0.7, "top_p": 0.9, "steps": 256},
    "The beginning of a story for small children, of a speech to Congress, or of an encyclopedia article.",
    ("Once upon a time, there was a little girl named Lily.", "The Congress of the United States", "The river is"),
    "Once upon a time, there was a little {{1}} named {{1}}. She loved to play with her {{1}} in the {{1}}. "
    "One day, she saw a big {{1}} and was very {{1}}.",
)


def in_domain(lm: LM) -> dict[str, Likelihood]:
    """The bound on what was held out of the three texts, read as in training."""
    found = {}
    for kind, about in KINDS.items():
        data = DataConfig.model_validate(
            {**lm.config.data.model_dump(), "source": str(HELD_OUT / kind), "field": "text"}
        )
        rows = prepare(data, lm.tokenizer, splits=("test",)).split("test")
        likelihood = evaluate(lm.model, rows, draws=DRAWS, limit=ROWS, protocol={"source": about, "in_domain": True})
        found[f"{kind} (in-domain: {about})"] = likelihood
        print(kind, likelihood.perplexity, file=sys.stderr)
    return found


def zero_shot(lm: LM, local: str) -> dict[str, Likelihood]:
    """The bound on the paper's seven sets, and on WikiText's test articles, of which the raw text is at hand."""
    members = (*suite("zero-shot"), Member("Wikitext, raw test", "wikitext2", "test"))
    results = evaluate_suite(lm, members, local=local, draws=DRAWS, rows=ROWS, estimator=TIMES)
    return {f"{one.member.title} ({'in-domain' if one.in_domain else 'zero-shot'})": one.likelihood for one in results}


def samples(lm: LM) -> str:
    """What it writes, unchosen: seeds 0 and 1 of each."""
    lines = ["## Samples", "", "Not chosen: seeds 0 and 1, with the settings that the model recommends.", ""]
    for _, prompt, length in TASKS:
        for sample in lm.write_samples(2, prompt=prompt, length=length, seed=0):
            lines += ["> " + " ".join(sample.text.split()), ""]
    lines += [f"`{GAP}`:", ""]
    lines += [f"> {text}\n" for text in lm.infill(GAP, n=3, seed=0)]
    return "\n".join(lines).rstrip()


ABOUT = """
A small model to try things with: it comes inside the package `unmask` and needs no network. It is no good writer: it
has seen {tokens:.1f} million tokens (half of them masked) on one CPU core. Stories for small children come out best.

## Data

| text | share of the training characters | licence |
|---|---|---|
| State of the Union speeches | 54 % | public domain (PDDL) |
| WikiText-2 training articles; no headings, no sentences with an `<unk>` | 28 % | CC BY-SA 3.0 |
| TinyStories, about 1,000 stories, each four times | 18 % | CDLA-Sharing 1.0 |

BPE of 8,192 tokens, trained on the same text; rows of 128 tokens, wrapped, EOS between documents. `tools/tiny_en.py`
makes the text, `tools/publish_tiny_en.py` this card. Training: {steps:,} steps of 16 rows, AdamW 8e-4 (constant after
200 steps), betas 0.9 and 0.98, average of the weights with decay 0.999, one seed. The weights are stored in float16,
and that is how they were evaluated.

## Limits

- In-domain and zero-shot figures are marked below. Zero-shot perplexities are high: the model knows three kinds of
  English and a vocabulary made for them.
- The row "Wikitext" is the validation file with `<unk>` for rare words (the raw one was not at hand) and with headings;
  neither is in the training text. "Wikitext, raw test" has headings, but no `<unk>`.
- Speeches repeat the views of their time; nothing was filtered. Facts in its text are invented.
- 128 tokens at a time; longer text is written in windows (`--stride`).
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
    run, local = Path(sys.argv[1]), sys.argv[2]
    trained = load(run)
    steps = int(checkpoint.resolve(run).name.removeprefix("step-"))  # a training may have been meant to go on
    data = trained.config.data.model_copy(update={"source": SOURCE, "cache": None})
    train = trained.config.train.model_copy(update={"steps": steps})
    config = trained.config.model_copy(update={"data": data, "train": train})
    folder = PRETRAINED / NAME
    shutil.rmtree(folder, ignore_errors=True)
    replace(trained, config=config, recommended=RECOMMENDED).save_pretrained(folder, dtype="float16")
    lm = load(folder)
    tokens = steps * config.train.batch_size * config.data.length / 1e6
    figures = {**in_domain(lm), **zero_shot(lm, local)}
    notes = ABOUT.format(tokens=tokens, steps=steps, samples=samples(lm))
    parameters = sum(p.numel() for p in lm.model.parameters())
    card = model_card(
        config, NAME, license="cc-by-sa-3.0", figures=figures, notes=notes, parameters=parameters, language=["en"],
        datasets=["roneneldan/TinyStories", "Salesforce/wikitext"], recommended=RECOMMENDED,
    )  # fmt: skip
    for old, new in BUILT_IN.items():
        assert old in card
        card = card.replace(old, new)
    (folder / "README.md").write_text(card, encoding="utf-8")


if __name__ == "__main__":
    main()
