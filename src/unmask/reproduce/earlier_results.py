"""Claims of results.json files that versions up to 0.3 wrote: their sizes stand in words only.

They are read from these and judged again, as now: one training on each side decides nothing.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

from .claims import Claim, Difference, decide, paired_by_seed, smaller
from .figures import Figure
from .report import NATS, RATIO, Check, Report
from .tables import TABLES

_N = r"(-?[\d.]+(?:e-?\d+)?)"
_FIGURE = rf"(?:≤ )?{_N}(?: ± {_N})?"
OF_ONE_MODEL = ("steps", "schedules")  # tables whose claims are about one model
SEVERAL = ("dna", "genomics", "glue")  # with two fine-tunings or classifiers of each side


def judged_again(report: Report) -> Report:
    """The report with the claims as they are judged now."""
    if report.unjudged:
        return report
    return replace(report, checks=[_check(report.name, check) for check in report.checks])


def _check(table: str, check: Check) -> Check:
    said = re.sub(r": within 2( errors)?, not decided|, -?[\d.]+ (combined standard )?errors?", "", check.detail)
    difference = _difference(table, said)
    if difference is None:
        return check
    known = {claim.text: claim for claim in TABLES[table].claims}
    claim = known.get(check.claim, Claim(check.claim, "", ""))
    of_one_model = table in OF_ONE_MODEL or not claim.trained
    if difference.trainings == 1 and of_one_model:
        difference = replace(difference, trainings=None)
    return decide(check.claim, replace(difference, words=said), claim.relation, claim.sigmas, claim.margin, claim.paper)


def _difference(table: str, said: str) -> Difference | None:
    if match := re.search(rf"difference of the means {_N} ± {_N}", said):
        return paired_by_seed(Figure(float(match[1]), float(match[2])), 2)
    if match := re.search(rf"{_N} ± {_N} nats a", said):
        value, error = float(match[1]), float(match[2])
        if table in SEVERAL:
            return replace(paired_by_seed(Figure(value, error), 2), unit=NATS)
        return Difference(value, error, "", "", trainings=1, texts=error)
    if match := re.search(rf"changes the perplexity by {_N.replace('-?', '[+-]?')} %", said):
        return Difference(math.log1p(float(match[1]) / 100), 0.0, "", "", trainings=1)
    if table == "dna-curves" and (match := re.search(rf"difference {_N} ± {_N}", said)):
        value, error = (float(bits) * math.log(2) for bits in match.groups())
        return Difference(value, error, "", "", trainings=1, texts=error)
    if match := re.search(rf"{_FIGURE} against {_FIGURE}", said):
        left, right = (Figure(float(match[i]), None if match[i + 1] is None else float(match[i + 1])) for i in (1, 3))
        if said.startswith("standard deviation"):  # of the larger one first; variances are squares
            gap = smaller([right], [left])
            wide = None if gap.error is None else 2 * gap.error
            return Difference(2 * gap.value, wide, "", "", unit=RATIO, trainings=1)
        return replace(smaller([left], [right]), counted="", remark="")
    return None
