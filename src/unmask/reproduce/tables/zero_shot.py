"""The table zeroshot-ppl: AR, SEDD and MDLM of equal size and text on seven sets that they were not trained on."""

from __future__ import annotations

import math
from dataclasses import replace

from ...data.pack import Rows
from ...evaluation.likelihood import baselines
from ...evaluation.suites import SUITES, in_domain, member_rows
from .. import paper
from ..bench import LONGER, Bench, ScoredModel
from ..report import Cell, Check, Figure, Report, Row, Table
from .perplexity import LOWER, compared

MODELS = {"AR": "ar", "SEDD": "sedd", "MDLM": "mdlm", "MDLM, longer": "mdlm" + LONGER}
AR_FIRST = ("PTB", "Wikitext", "LM1B", "AG News")  # where AR is best in the paper; on the others MDLM is
UNIGRAM = "unigram"
OF_THE_TEXT = ("split", "tokens", "documents", "bytes", "test_rows", "eos_between")  # not of the sets


def zero_shot(bench: Bench) -> Report:
    """All models on all sets."""
    members, own_data = SUITES["zero-shot"], bench.config("mdlm").data
    rows = {
        member.title: member_rows(own_data, bench.data.tokenizer, member, bench.local, bench.quiet)
        for member in members
    }  # a set that is missing is missed before anything is trained
    known = {member.title for member in members if in_domain(own_data, member) or member.corpus in bench.known}
    bench.need(list(MODELS.values()))
    by = {
        title: {column: bench.score(name, rows=own, what=f"{name} on {title}") for column, name in MODELS.items()}
        for title, own in rows.items()
    }
    printed = paper.ZERO_SHOT
    lines = [
        Row(title, printed.rows[title], _cells(bench, rows[title], own), _note(rows[title], title in known))
        for title, own in by.items()
    ]
    report = bench.report(
        "zero-shot",
        printed.label,
        [Table(printed.title, printed.label, [*MODELS, UNIGRAM], lines)],
        checks=_checks({title: own for title, own in by.items() if title not in known}),
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
    own = {key: value for key, value in report.protocol.items() if key not in OF_THE_TEXT}
    return replace(report, protocol={"trained on": f"the train split of {own.pop('source')}", **own})


def _cells(bench: Bench, rows: Rows, scored: dict[str, ScoredModel]) -> dict[str, Cell]:
    size = bench.data.tokenizer.vocab.size
    simple = baselines(bench.rows("train"), rows, size)["unigram"]
    return {**{column: own.perplexity for column, own in scored.items()}, UNIGRAM: Figure(math.exp(simple))}


def _note(rows: Rows, known: bool) -> str:
    counted = f"{len(rows):,} rows, {rows.tokens:,} tokens, {rows.documents:,} documents"
    return f"in-domain; {counted}" if known else counted


def _checks(by: dict[str, dict[str, ScoredModel]]) -> list[Check]:
    checks = [compared(f"{title}: MDLM is better than SEDD", own["MDLM"], own["SEDD"]) for title, own in by.items()]
    for title, own in by.items():
        first, second = ("AR", "MDLM") if title in AR_FIRST else ("MDLM", "AR")
        checks.append(compared(f"{title}: {first} is better than {second}", own[first], own[second]))
    return checks
