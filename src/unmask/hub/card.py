"""The README.md of a model on the Hub: what it is, figures with their protocol and errors, how to load it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isfinite, log
from typing import Any

import yaml

from ..config import Config
from ..evaluation.suites import shared
from ..types import Likelihood, UserError
from .layout import is_published

Figures = Mapping[str, Likelihood | Mapping[str, Any]]  # by data set; a Likelihood or its as_dict()
TAGS = ("unmask", "mdlm", "masked-diffusion", "diffusion-language-model")
HEAD = ("data", "perplexity", "± draws", "± texts", "bits per token", "tokens")
COLUMNS = 8  # of the table of what differs between the protocols
TELLING = (
    "source",
    "split",
    "in_domain",
    "documents",
    "rows",
    "detokenizer",
    "layout",
    "length",
    "likelihood",
    "bound",
    "estimator",
    "draws",
    "seed",
)


def model_card(
    config: Config,
    repo_id: str,
    *,
    license: str | None = None,
    figures: Figures | None = None,
    notes: str = "",
    parameters: int | None = None,
    tags: Sequence[str] = (),
    datasets: Sequence[str] = (),
    language: Sequence[str] = (),
) -> str:
    """The card of a model; a figure without its protocol is refused."""
    published = is_published(config)
    head: dict[str, Any] = {"license": license, "language": list(language), "datasets": list(datasets)}
    head = {key: value for key, value in head.items() if value}
    head |= {"library_name": "unmask", "tags": [*TAGS, *(tag for tag in tags if tag not in TAGS)]}
    if published:
        head["pipeline_tag"] = "fill-mask"
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---",
        f"# {repo_id.rsplit('/', 1)[-1]}",
        _about(config, parameters),
        notes.strip(),
        _loading(repo_id, published),
        _figures(figures or {}),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _about(config: Config, parameters: int | None) -> str:
    net, timed = config.model, getattr(config.model, "time_conditioning", False)
    size = "" if parameters is None else f"{parameters:,} parameters, "
    return (
        f"A masked diffusion language model (method `{net.method}`, [MDLM](https://arxiv.org/abs/2406.07524)): {size}"
        f"{net.n_blocks} blocks of {net.hidden_dim} channels, {config.data.length} tokens per row, schedule "
        f"{config.schedule.name}, {'told the time' if timed else 'not told the time'}."
    )


def _loading(repo_id: str, published: bool) -> str:
    text = (
        "## How to load it\n\n"
        "There is no code in this repository, and `trust_remote_code` is not needed: `pip install unmask`.\n\n"
        f'```python\nimport unmask\n\nlm = unmask.load("{repo_id}")\nlm.sample(2, seed=0)\n'
        'lm.infill("The {{3}} sat on the {{1}}.")\nlm.score("a sentence")\n```'
    )
    if not published:
        return text
    return (
        f"{text}\n\nIn transformers, after `import unmask.transformers`:\n\n"
        "```python\nimport unmask.transformers\n"
        "from transformers import AutoModelForMaskedLM, AutoTokenizer, pipeline\n\n"
        f'tokenizer = AutoTokenizer.from_pretrained("{repo_id}")\n'
        f'model = AutoModelForMaskedLM.from_pretrained("{repo_id}")\n'
        'fill = pipeline("fill-mask", model=model, tokenizer=tokenizer)\n```'
    )


def _figures(figures: Figures) -> str:
    if not figures:
        return ""
    facts = {name: dict(f.as_dict() if isinstance(f, Likelihood) else f) for name, f in figures.items()}
    for name, fact in facts.items():
        missing = [key for key in ("perplexity", "nats_per_token", "tokens", "protocol") if not fact.get(key)]
        if missing:
            raise UserError(f"the figure for {name!r} lacks {missing[0]}; give what evaluate or LM.score returned")
    lines = [
        "## Figures",
        "",
        "Perplexities are upper bounds unless the protocol says exact. Errors are standard errors: of the Monte Carlo "
        "draws, and over texts.",
        "",
        *_table(HEAD, [_row(name, fact) for name, fact in facts.items()]),
    ]
    return "\n".join([*lines, *_protocols({name: fact["protocol"] for name, fact in facts.items()})])


def _protocols(protocols: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What all figures share, once, and one row per figure for what differs."""
    same = shared(list(protocols.values()))
    others = list(dict.fromkeys(key for protocol in protocols.values() for key in protocol if key not in same))
    others.sort(key=lambda key: TELLING.index(key) if key in TELLING else len(TELLING))  # else as they come
    lines: list[str] = []
    if same:
        whose = "of all figures" if len(protocols) > 1 else f"of {next(iter(protocols))}"
        lines += ["", f"Protocol {whose}:", "", *_table(("setting", "value"), list(same.items()))]
    if columns := others[:COLUMNS]:
        rows = [(name, *(protocol.get(key, "-") for key in columns)) for name, protocol in protocols.items()]
        lines += ["", "What differs:", "", *_table(("data", *columns), rows)]
    if rest := others[COLUMNS:]:
        lines += ["", f"Different too: {', '.join(rest)}."]
    return lines


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    lines = [f"| {' | '.join(map(_cell, row))} |" for row in (head, *rows)]
    return [lines[0], "|---" * len(head) + "|", *lines[1:]]


def _cell(value: Any) -> str:
    """A table cell: text as it is, anything else as JSON."""
    shown = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return " ".join(shown.split()).replace("|", "\\|")


def _row(name: str, fact: Mapping[str, Any]) -> tuple[str, ...]:
    ppl = float(fact["perplexity"])

    def error(key: str) -> str:
        value = fact.get(key)
        return "unknown" if value is None or not isfinite(ppl) else f"{ppl * float(value):.2g}"  # d exp(x) = exp(x) dx

    bits = float(fact.get("bits_per_token") or float(fact["nats_per_token"]) / log(2))
    return name, f"{ppl:.2f}", error("stderr_nats"), error("stderr_data"), f"{bits:.3f}", f"{int(fact['tokens']):,}"
