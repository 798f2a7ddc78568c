"""zeroshot-ppl: AR, SEDD and MDLM of equal size and text on the sets of the suite, which they were not trained on."""

from __future__ import annotations

import math
from dataclasses import replace

from ...data.pack import Rows
from ...evaluation.likelihood import baselines
from ...evaluation.suites import SUITES, in_domain, member_rows
from .. import paper
from ..bench import Bench, ScoredModel
from ..claims import Claim
from ..figures import Figure
from ..report import Cell, Check, Report, Row, Table
from ..specs import PaperTable
from ..text_models import LONGER, TEXT
from .perplexity import LOWER

MODELS = {"AR": "ar", "SEDD": "sedd", "MDLM": "mdlm", "MDLM, longer": "mdlm" + LONGER}
UNIGRAM = "unigram"
OF_THE_TEXT = ("split", "tokens", "documents", "bytes", "test_rows", "eos_between")  # not of the sets


def zero_shot(bench: Bench) -> Report:
    """All models on all sets."""
    members, data = SUITES["zero-shot"], bench.base.data
    rows = {
        member.title: member_rows(data, bench.data.tokenizer, member, bench.local, bench.quiet) for member in members
    }  # a set that is missing is missed before anything is trained
    known = {member.title for member in members if in_domain(data, member) or member.corpus in bench.known}
    bench.need(list(MODELS.values()))
    scored = {
        title: {column: bench.score(name, rows=part, what=f"{name} on {title}") for column, name in MODELS.items()}
        for title, part in rows.items()
    }
    printed = paper.ZERO_SHOT
    lines = [
        Row(title, printed.rows.get(title, {}), _cells(bench, rows[title], models), _note(rows[title], title in known))
        for title, models in scored.items()
    ]  # a set that the paper does not have has our figures only
    report = bench.report(
        "zero-shot",
        printed.label,
        [Table(printed.title, printed.label, [*MODELS, UNIGRAM], lines)],
        checks=_checks({title: models for title, models in scored.items() if title not in known}),
        protocol={
            "±": "standard error over draws; AR is exact",
            "sets": "wrapped to the model's length without EOS between documents, each with its published detokenizer; "
            + ", ".join(f"{member.title}: {member.corpus} {member.split}" for member in members),
            "rows": f"at most {bench.scale.rows} of a set, evenly spaced" if bench.scale.rows else "all",
            "in-domain": ", ".join(sorted(known)) or "none",
            "budgets": f"AR trains half the steps; MDLM, longer: {bench.scale.longer} times the steps of MDLM",
            UNIGRAM: "of the training text, add-one",
        },
        notes=[*printed.remarks, "claims are checked on the sets that are not in-domain.", f"{LOWER}."],
    )
    protocol = {key: value for key, value in report.protocol.items() if key not in OF_THE_TEXT}
    return replace(report, protocol={"trained on": f"the train split of {protocol.pop('source')}", **protocol})


def _cells(bench: Bench, rows: Rows, scored: dict[str, ScoredModel]) -> dict[str, Cell]:
    size = bench.data.tokenizer.vocab.size
    simple = baselines(bench.rows("train"), rows, size)["unigram"]
    return {**{column: model.perplexity for column, model in scored.items()}, UNIGRAM: Figure(math.exp(simple))}


def _note(rows: Rows, known: bool) -> str:
    counted = f"{len(rows):,} rows, {rows.tokens:,} tokens, {rows.documents:,} documents"
    return f"in-domain; {counted}" if known else counted


def _checks(scored: dict[str, dict[str, ScoredModel]]) -> list[Check]:
    """What the paper claims of its sets: MDLM is always better than SEDD, and AR better than MDLM on some."""
    sets = [title for title in scored if title in paper.ZERO_SHOT.rows]
    claims = [(title, Claim(f"{title}: MDLM is better than SEDD", "MDLM", "SEDD")) for title in sets]
    for title in sets:
        first, second = sorted(("AR", "MDLM"), key=lambda method: _printed(title, method))
        claims.append((title, Claim(f"{title}: {first} is better than {second}", first, second)))
    return [claim.check(scored[title]) for title, claim in claims]


def _printed(title: str, method: str) -> float:
    figure = paper.ZERO_SHOT.rows[title][method]
    assert isinstance(figure, Figure)
    return figure.value


ZERO_SHOT = PaperTable("zero-shot", zero_shot, TEXT, "owt", local=True, in_domain=True)
