"""How masks become tokens (paper sections 4.1 and 4.2): samplers, and the batcher that takes them through a network."""

from .adaptive import Adaptive
from .ancestral import Ancestral
from .batcher import Batcher, replay
from .block_order import BlockByBlock
from .choice import Choice
from .constrained import Constraint, FormedSpan
from .gaussian import Gaussian
from .gibbs import Gibbs
from .orders import FirstHitting, GivenOrder, LeftToRight, RevealPlan
from .params import SAMPLERS, SamplerEntry, SamplingParams, make_sampler
from .particles import Particles, run_particles
from .remask import PredictorCorrector, Remasking
from .request import Request, Written
from .rules import Rules
from .sampler import Denoiser, Sampler, Slot, TokenDenoiser, Trajectory, stack, time_grid
from .simplex import Simplex
from .speculative import Speculative
from .token_step import advance_tokens
from .windows import Windows

__all__ = [
    "SAMPLERS",
    "Adaptive",
    "Ancestral",
    "Batcher",
    "BlockByBlock",
    "Choice",
    "Constraint",
    "Denoiser",
    "FirstHitting",
    "FormedSpan",
    "Gaussian",
    "Gibbs",
    "GivenOrder",
    "LeftToRight",
    "Particles",
    "PredictorCorrector",
    "Remasking",
    "Request",
    "RevealPlan",
    "Rules",
    "Sampler",
    "SamplerEntry",
    "SamplingParams",
    "Simplex",
    "Slot",
    "Speculative",
    "TokenDenoiser",
    "Trajectory",
    "Windows",
    "Written",
    "advance_tokens",
    "make_sampler",
    "replay",
    "run_particles",
    "stack",
    "time_grid",
]
