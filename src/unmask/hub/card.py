"""The README.md of a model on the Hub: what it is, figures with their protocol and errors, how to load it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isfinite, log
from pathlib import Path
from typing import Any

import yaml

from ..config import Config
from ..evaluation.suites import shared
from ..files import read_json
from ..sampling.recommended import FILE as SAMPLING_FILE
from ..sampling.recommended import Recommended
from ..types import Likelihood, UserError
from .layout import is_readable

Figure = Likelihood | Mapping[str, Any]  # what `evaluate` or `LM.score` returned, or its as_dict()
Figures = Figure | Mapping[str, Figure] | str | Path  # one; several by name; or the JSON of `unmask eval --json`
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
    recommended: Recommended | None = None,
) -> str:
    """The card of a model; a figure without its protocol is refused."""
    readable = is_readable(config)
    head: dict[str, Any] = {"license": license, "language": list(language), "datasets": list(datasets)}
    head = {key: value for key, value in head.items() if value}
    known = (*TAGS, "block-diffusion") if config.model.method == "block" else TAGS
    head |= {"library_name": "unmask", "tags": [*known, *(tag for tag in tags if tag not in known)]}
    if readable:
        head["pipeline_tag"] = "fill-mask"
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---",
        f"# {repo_id.rsplit('/', 1)[-1]}",
        _about(config, parameters),
        notes.strip(),
        _loading(repo_id, readable),
        _recommended(recommended or Recommended()),
        _figures(figures or {}),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _about(config: Config, parameters: int | None) -> str:
    net, timed = config.model, getattr(config.model, "time_conditioning", False)
    size = "" if parameters is None else f"{parameters:,} parameters, "
    paper = "[MDLM](https://arxiv.org/abs/2406.07524)"
    if net.method == "block":
        paper = "[block diffusion](https://arxiv.org/abs/2503.09573)"
    return (
        f"A masked diffusion language model (method `{net.method}`, {paper}): {size}"
        f"{net.n_blocks} blocks of {net.hidden_dim} channels, {config.data.length} tokens per row, schedule "
        f"{config.schedule.name}, {'told the time' if timed else 'not told the time'}."
    ) + (_sizes(config) if net.method == "block" else "")


def _sizes(config: Config) -> str:
    """In which blocks a model of method block writes, and on which it was trained."""
    spec, shares = config.block, config.block.shares

    def named(size: int | str) -> str:
        return "whole rows" if size == "full" else f"blocks of {size} token{'s' if size != 1 else ''}"

    trained = ", ".join(f"{named(size)} ({share:.0%} of the steps)" for size, share in shares.items())
    trained = trained if len(shares) > 1 else "these alone"
    return f" It writes text in {named(spec.size)}, and was trained on {trained}."


def _loading(repo_id: str, readable: bool) -> str:
    text = (
        "## How to load it\n\n"
        "There is no code in this repository, and `trust_remote_code` is not needed: `pip install unmask`.\n\n"
        f'```python\nimport unmask\n\nlm = unmask.load("{repo_id}")\nlm.sample(2, seed=0)\n'
        'lm.infill("The {{3}} sat on the {{1}}.")\nlm.score("a sentence")\n```'
    )
    if not readable:
        return text
    return (
        f"{text}\n\nIn transformers, after `import unmask.transformers`:\n\n"
        "```python\nimport unmask.transformers\n"
        "from transformers import AutoModelForMaskedLM, AutoTokenizer, pipeline\n\n"
        f'tokenizer = AutoTokenizer.from_pretrained("{repo_id}")\n'
        f'model = AutoModelForMaskedLM.from_pretrained("{repo_id}")\n'
        'fill = pipeline("fill-mask", model=model, tokenizer=tokenizer)\n```'
    )


def _recommended(recommended: Recommended) -> str:
    if not recommended:
        return ""
    lines = ["## How to sample it"]
    if recommended.settings:
        shown = ", ".join(f"{name} {value}" for name, value in recommended.settings.items())
        lines.append(
            f"Recommended: {shown} (`{SAMPLING_FILE}`). `lm.sample`, `unmask sample` and `unmask serve` use these "
            "settings unless others are given; `exact=True` or `--exact` draws from the plain law, and so does every "
            "figure below."
        )
    if recommended.style:
        lines.append(f"Prompts that suit it: {recommended.style}")
    examples = [*recommended.prompts, *([recommended.infill] if recommended.infill else [])]
    if examples:
        lines.append("\n".join(f"- `{text}`" for text in examples))
    return "\n\n".join(lines)


def _figures(figures: Figures) -> str:
    facts = _facts(figures)
    if not facts:
        return ""
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


def _facts(figures: Any) -> dict[str, dict[str, Any]]:
    """Figures by the name of their data, whatever form they were given in."""
    if isinstance(figures, str | Path):
        return _facts(read_json(Path(figures), "cannot read the figures"))
    if isinstance(figures, Mapping) and isinstance(sets := figures.get("sets"), list):  # of eval --suite
        return {str(row.get("set")): dict(row) for row in sets if isinstance(row, Mapping)}
    if isinstance(figures, Likelihood) or (isinstance(figures, Mapping) and "perplexity" in figures):
        fact = figures.as_dict() if isinstance(figures, Likelihood) else dict(figures)
        about = fact.get("protocol") or {}
        return {" ".join(str(about[key]) for key in ("source", "split") if about.get(key)) or "text": fact}
    if not isinstance(figures, Mapping) or not all(isinstance(f, Likelihood | Mapping) for f in figures.values()):
        raise UserError(
            "figures must be what evaluate or LM.score returned, such results by the name of their data, or the file "
            "that unmask eval --json printed"
        )
    return {str(name): dict(f.as_dict() if isinstance(f, Likelihood) else f) for name, f in figures.items()}


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
