"""zeroshot-ppl: AR, SEDD and MDLM of equal size and text on the sets of the suite, which they were not trained on."""

from __future__ import annotations

import math
from dataclasses import replace

from ...data.pack import Rows
from ...evaluation.likelihood import baselines
from ...evaluation.suites import SUITES, in_domain, member_rows
from .. import paper
from ..bench import Bench
from ..claims import Claim
from ..figures import Figure
from ..report import Cell, Check, Report, Row, Table
from ..scored import ScoredModel, mean_perplexity
from ..specs import PaperTable
from ..text_models import LONGER, TEXT
from .perplexity import LOWER, errors

METHODS = {"AR": "ar", "SEDD": "sedd", "MDLM": "mdlm-time"}  # as on OpenWebText: SEDD and MDLM have time conditioning
LONG = ", longer"
MODELS = METHODS | {method + LONG: name + LONGER for method, name in METHODS.items()}
UNIGRAM = "unigram"
OF_THE_TEXT = ("split", "tokens", "documents", "bytes", "test_rows", "eos_between")  # not of the sets


def zero_shot(bench: Bench) -> Report:
    """All models on all sets, after the shorter and the longer training."""
    members, data = SUITES["zero-shot"], bench.base.data
    rows = {
        member.title: member_rows(data, bench.data.tokenizer, member, bench.local, bench.quiet) for member in members
    }  # a set that is missing is missed before anything is trained
    known = {member.title for member in members if in_domain(data, member) or member.corpus in bench.known}
    bench.need(list(MODELS.values()))
    scored = {
        title: {column: bench.scores(name, rows=part, what=f"{name} on {title}") for column, name in MODELS.items()}
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
            "±": errors(bench, "standard error over draws; AR is exact"),
            "sets": "wrapped to the model's length without EOS between documents, each with its published detokenizer; "
            + ", ".join(f"{member.title}: {member.corpus} {member.split}" for member in members),
            "rows": f"at most {bench.scale.rows} of a set, evenly spaced" if bench.scale.rows else "all",
            "in-domain": ", ".join(sorted(known)) or "none",
            "budgets": f"AR trains half the steps; longer: {bench.scale.longer} times the steps",
            "time conditioning": "SEDD and MDLM have it, as in the paper",
            UNIGRAM: "of the training text, add-one",
        },
        notes=[*printed.remarks, "claims are checked on the sets that are not in-domain."]
        + [f"{LOWER}."] * (bench.seeds == 1),
    )
    protocol = {key: value for key, value in report.protocol.items() if key not in OF_THE_TEXT}
    return replace(report, protocol={"trained on": f"the train split of {protocol.pop('source')}", **protocol})


def _cells(bench: Bench, rows: Rows, scored: dict[str, list[ScoredModel]]) -> dict[str, Cell]:
    size = bench.data.tokenizer.vocab.size
    simple = baselines(bench.rows("train"), rows, size)["unigram"]
    return {**{column: mean_perplexity(model) for column, model in scored.items()}, UNIGRAM: Figure(math.exp(simple))}


def _note(rows: Rows, known: bool) -> str:
    counted = f"{len(rows):,} rows, {rows.tokens:,} tokens, {rows.documents:,} documents"
    return f"in-domain; {counted}" if known else counted


def _claims(title: str) -> list[Claim]:
    """What the paper says of a set, after both trainings: MDLM is better than SEDD, and better or worse than AR."""
    printed: dict[str, float] = {}
    for method, figure in paper.ZERO_SHOT.rows[title].items():
        assert isinstance(figure, Figure)
        printed[method] = figure.value
    first, second = sorted(("AR", "MDLM"), key=lambda method: printed[method])
    return [
        Claim(
            f"{title}: {less} is better than {more} ({words} training)",
            less + end,
            more + end,
            paper=math.log(printed[more] / printed[less]),
        )
        for less, more in (("MDLM", "SEDD"), (first, second))
        for end, words in (("", "shorter"), (LONG, "longer"))
    ]


CLAIMS = {title: _claims(title) for title in paper.ZERO_SHOT.rows}


def _checks(scored: dict[str, dict[str, list[ScoredModel]]]) -> list[Check]:
    """The claims on the sets that the paper has: all on SEDD, then all on AR."""
    sets = [title for title in scored if title in CLAIMS]
    return [CLAIMS[title][which].check(scored[title]) for which in range(4) for title in sets]


ZERO_SHOT = PaperTable(
    "zero-shot",
    zero_shot,
    TEXT,
    "owt",
    local=True,
    in_domain=True,
    claims=tuple(claim for claims in CLAIMS.values() for claim in claims),
    sides=MODELS,
)
