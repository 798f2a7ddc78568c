"""supp:fig:subs-ablation: the bound of T steps of one model, for growing T."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from ...evaluation import ESTIMATORS
from ...models.language_model import LanguageModel
from ...plot import Curve, Plot
from ...process.schedule import DiscreteTime
from .. import paper
from ..bench import Bench
from ..claims import Claim
from ..figures import Figure
from ..report import Report, Row, Table
from ..scored import mean_perplexity
from ..specs import PaperTable
from ..text_models import TEXT
from .perplexity import errors

STEPS = (10, 20, 50, 100, 200, 500, 1000)
CLAIMS = tuple(
    Claim(
        f"T = {more} is better than T = {less}",
        more,
        less,
        paper=paper.log_ratio(paper.DISCRETE_TIME, more, less),
        trained=False,
    )
    for less, more in itertools.pairwise([*map(str, STEPS), "∞"])
)


def steps(bench: Bench) -> Report:
    """The bound of T steps, for growing T: the same model throughout."""
    bench.need(["mdlm"])
    printed = paper.DISCRETE_TIME
    estimator = ESTIMATORS["strata"]
    scored = {"∞": bench.scores("mdlm", estimator=estimator, what="T = ∞")}
    for t in STEPS:
        scored[str(t)] = bench.scores("mdlm", _under(DiscreteTime(t)), estimator=estimator, what=f"T = {t}")
    rows = [Row(name, printed.rows[name], {paper.PPL: mean_perplexity(model)}) for name, model in scored.items()]
    limit = mean_perplexity(scored["∞"]).value
    curve = Curve("here", [float(t) for t in STEPS], [mean_perplexity(scored[str(t)]).value / limit for t in STEPS])
    theirs = [_value(printed.rows[str(t)][paper.PPL]) / _value(printed.rows["∞"][paper.PPL]) for t in STEPS]
    plot = Plot(
        "steps",
        "Perplexity bound with T steps, relative to T = ∞",
        "T",
        "ratio",
        [curve, Curve("paper", [float(t) for t in STEPS], theirs)],
        log_x=True,
    )
    return bench.report(
        "steps",
        printed.label,
        [Table(printed.title, printed.label, printed.columns, rows)],
        plots=[plot],
        checks=[claim.check(scored) for claim in CLAIMS],
        protocol={"estimator": estimator.name, "±": errors(bench, "standard error over draws")},
        notes=list(printed.remarks),
    )


def _value(figure: Figure | str) -> float:
    assert isinstance(figure, Figure)
    return figure.value


def _under(law: DiscreteTime) -> Callable[[LanguageModel], LanguageModel]:
    return lambda model: model.under(law=law)


STEPS_TABLE = PaperTable(
    "steps", steps, TEXT, "owt", claims=CLAIMS, sides=dict.fromkeys((*map(str, STEPS), "∞"), "mdlm")
)
