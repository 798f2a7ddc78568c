"""How masks become tokens (paper sections 4.1 and 4.2): plans, and the desk that takes them through the network."""

from .adaptive import Adaptive
from .ancestral import Ancestral
from .batcher import Batcher, Request, SequentialBatcher, replay, run
from .choice import Choice
from .gaussian import Gaussian
from .gibbs import Gibbs
from .orders import FirstHitting, GivenOrder, LeftToRight, RevealPlan
from .params import SAMPLERS, SamplerEntry, SamplingParams, make_sampler
from .remask import PredictorCorrector, Remasking
from .rules import Rules
from .sampler import Denoiser, Sampler, Trajectory, stack, time_grid
from .simplex import Simplex
from .windows import Windows

__all__ = [
    "SAMPLERS",
    "Adaptive",
    "Ancestral",
    "Batcher",
    "Choice",
    "Denoiser",
    "FirstHitting",
    "Gaussian",
    "Gibbs",
    "GivenOrder",
    "LeftToRight",
    "PredictorCorrector",
    "Remasking",
    "Request",
    "RevealPlan",
    "Rules",
    "Sampler",
    "SamplerEntry",
    "SamplingParams",
    "SequentialBatcher",
    "Simplex",
    "Trajectory",
    "Windows",
    "make_sampler",
    "replay",
    "run",
    "stack",
    "time_grid",
]
