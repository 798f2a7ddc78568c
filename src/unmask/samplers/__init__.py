"""How masks become tokens (paper sections 4.1 and 4.2): plans, and the desk that takes them through the network."""

from .adaptive import Adaptive
from .ancestral import Ancestral
from .base import Course, Denoiser, Plan, stack, time_grid
from .choice import Choice
from .control import Control
from .desk import Desk, Queue, Task, replay, run
from .gaussian import Gaussian
from .gibbs import Gibbs
from .named import PLANS, plan_named
from .plans import FirstHitting, GivenOrder, LeftToRight, RevealPlan
from .remask import PredictorCorrector, Remasking
from .simplex import Simplex
from .windows import Windows

__all__ = [
    "PLANS",
    "Adaptive",
    "Ancestral",
    "Choice",
    "Control",
    "Course",
    "Denoiser",
    "Desk",
    "FirstHitting",
    "Gaussian",
    "Gibbs",
    "GivenOrder",
    "LeftToRight",
    "Plan",
    "PredictorCorrector",
    "Queue",
    "Remasking",
    "RevealPlan",
    "Simplex",
    "Task",
    "Windows",
    "plan_named",
    "replay",
    "run",
    "stack",
    "time_grid",
]
