"""How likely is this text, or this span of it? Bounds, exact laws, and pseudo-likelihoods.

`score` is the way in. Every figure names its law: on an enumerable space the sum over all texts of exp(-nats) is at
most 1 for a bound, exactly 1 for an exact law, and anything for a pseudo-likelihood.
"""

from .distributions import Marginals, OpenPosition, marginals, need_masks
from .estimators import ESTIMATORS, STRATA, TIMES, count_weights, default_estimator, strata_nats, times_nats
from .exact import MOST_TOKENS, exact_nats, pseudo_nats
from .multiple_choice import Answer, answers
from .scoring import METHODS, default_method, score
from .show import score_lines, token_lines
from .spans import Span, marked, read_texts
from .trajectories import iw_bound, plan_nats

__all__ = [
    "ESTIMATORS",
    "METHODS",
    "MOST_TOKENS",
    "STRATA",
    "TIMES",
    "Answer",
    "Marginals",
    "OpenPosition",
    "Span",
    "answers",
    "count_weights",
    "default_estimator",
    "default_method",
    "exact_nats",
    "iw_bound",
    "marginals",
    "marked",
    "need_masks",
    "plan_nats",
    "pseudo_nats",
    "read_texts",
    "score",
    "score_lines",
    "strata_nats",
    "times_nats",
    "token_lines",
]
