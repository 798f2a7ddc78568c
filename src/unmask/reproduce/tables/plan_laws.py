"""Our claims about the laws of one MDLM: what its bound leaves out, what the order is worth, and how noisy a draw is.

The bound of the paper averages over orders outside the logarithm; a mean over K orders inside it is closer to the law
of writing in random order, and an order that the network (or nobody) chooses is a law of its own, known exactly.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import numpy as np
import torch

from ...evaluation.estimators import STRATA, TIMES
from ...evaluation.likelihood import Estimator
from ...evaluation.trajectories import plan_nats
from ...models.language_model import LanguageModel
from ...process.keys import Keys
from ...sampling import Adaptive, FirstHitting, LeftToRight, Sampler
from ...types import Batch, TokenNats
from ..bench import Bench
from ..claims import Claim, less_variance
from ..figures import Figure
from ..report import Report, Row, Table
from ..scored import ScoredModel, Trainings, mean_perplexity, mean_rate
from ..specs import PaperTable
from ..text_models import TEXT
from .perplexity import errors

BY_TIMES, BY_COUNTS = "bound, by times", "bound, by mask counts"
ORDERS = (4, 16)
PLANS: dict[str, Sampler] = {
    "left to right": LeftToRight(),
    "the surest token first": Adaptive("confidence", k=1),
    "the lowest entropy first": Adaptive("entropy", k=1),
}
NATS, PPL, SPREAD = "nats/token", "PPL", "deviation of the mean"
DRAWS = 64  # of a bound; of the means over orders two


def _over(orders: int) -> str:
    return f"mean over {orders} random orders"


CLAIMS = (
    Claim("the bound is the same by mask counts", BY_COUNTS, BY_TIMES, "equal", trained=False),
    *(
        Claim(f"a mean over {more} orders is closer to the law than {than}", _over(more), side, trained=False)
        for more, than, side in (
            (ORDERS[0], "the bound", BY_COUNTS),
            (ORDERS[1], f"over {ORDERS[0]}", _over(ORDERS[0])),
        )
    ),
    *(Claim(f"{plan} is a better law than random order", plan, _over(ORDERS[-1]), trained=False) for plan in PLANS),
)
QUIETER = Claim(
    "the mean over texts has less variance by mask counts than by times",
    BY_COUNTS,
    BY_TIMES,
    measure=less_variance,
    trained=False,
)


def laws(bench: Bench) -> Report:
    """One model: its bound drawn in two ways, means over orders, and the exact laws of three orders."""
    bench.need(["mdlm"])
    few = None if bench.scale.rows is None else max(2, bench.scale.rows // 16)
    score = functools.partial(bench.scores, "mdlm", limit=few)
    scored = {
        BY_TIMES: score(estimator=TIMES, what=BY_TIMES, draws=DRAWS),
        BY_COUNTS: score(estimator=STRATA, what=BY_COUNTS, draws=DRAWS),
    }
    for k in ORDERS:
        scored[_over(k)] = score(estimator=_following(FirstHitting(), k), what=_over(k), draws=2)
    for name, plan in PLANS.items():
        drawn = score(estimator=_following(plan), what=name, draws=1)
        scored[name] = [replace(model, exact=True) for model in drawn]
    variances = {name: [_variance(model) for model in scored[name]] for name in (BY_TIMES, BY_COUNTS)}
    return bench.report(
        "laws",
        "laws and estimators of one model",
        [Table("One MDLM by its laws", "ours", [NATS, PPL, SPREAD], [_row(*each) for each in scored.items()])],
        checks=[*(claim.check(scored) for claim in CLAIMS), QUIETER.check(variances)],
        protocol={
            "texts": few or "all",
            "random order": "one token at a time; -log of the mean of p(text | order) over so many orders, an upper "
            "bound on -log p that falls with their number; two draws",
            "other orders": "one token at a time; exact",
            "draws": DRAWS,
            SPREAD: "of the mean over texts, from draw to draw, one network call a text; in nats/token",
            "±": errors(bench, "standard error over draws"),
        },
        study=True,
    )


def _following(plan: Sampler, orders: int = 1) -> Estimator:
    """The likelihood of texts that are written by a plan."""

    def nats(model: LanguageModel, batch: Batch, keys: Keys) -> TokenNats:
        rows = plan_nats(model, batch, batch.weight(), plan, keys.fork("orders"), orders=orders, batch_size=64)
        return TokenNats(torch.from_numpy(rows.nats), batch.counted())

    return Estimator(f"{plan.describe()}, orders a draw: {orders}", nats)


def _variance(scored: ScoredModel) -> Figure:
    """The variance from draw to draw of the mean over texts, in squared nats a token, with its standard error."""
    variance = float((scored.nats.sum(0) / scored.tokens.sum()).var(ddof=1))
    return Figure(variance, variance * math.sqrt(2 / (scored.nats.shape[1] - 1)))


def _row(name: str, scored: Trainings) -> Row:
    cells = {NATS: mean_rate(scored), PPL: mean_perplexity(scored)}
    if name in (BY_TIMES, BY_COUNTS):
        cells[SPREAD] = Figure(float(np.sqrt(np.mean([_variance(model).value for model in scored]))))
    return Row(name, {}, cells)


LAWS = PaperTable(
    "laws",
    laws,
    TEXT,
    "lm1b",
    claims=(*CLAIMS, QUIETER),
    sides=dict.fromkeys((BY_TIMES, BY_COUNTS, *map(_over, ORDERS), *PLANS), "mdlm"),
)
