"""The optimizers of a run: AdamW for all weights, or Muon for the matrices of the blocks and AdamW for the others.

Muon (Jordan et al. 2024) moves a matrix by the orthogonal factor of its momentum: all directions that a gradient has
had lately count alike, however weak. The momentum m of a gradient g is the mean m <- b m + (1 - b) g, looked at one
step ahead (Nesterov): (1 - b) g + b m. The orthogonal factor U V' of that is approximated by five steps of a polynomial
(Newton-Schulz), whose singular values lie about 1. A projection that computes several things, as queries, keys and
values, is several matrices (`Network.matrices`).

Weight decay is decoupled as in AdamW: before a step of rate r, weights are multiplied by 1 - r * train.weight_decay.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..config import TrainConfig, steps_of
from ..hub import checkpoint
from ..models.language_model import LanguageModel
from ..networks.interface import Network, Parts
from ..types import UserError

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of x, x^3 and x^5: steep at 0, and near 1 for all that is larger
ITERATIONS = 5
SMALLEST = 1e-7  # a gradient of a smaller norm is noise, and moves nothing much
FIRST_MOMENTUM, MOMENTUM_STEPS = 0.85, 150  # a mean over few steps at first, while gradients turn quickly
AT_ONCE = 1 << 24  # numbers of matrices that are orthogonalised together


def learning_rate(spec: TrainConfig, step: int, peak: float | None = None) -> float:
    """Linear warm-up to `peak` (train.lr), then constant or a decay to final_lr times that; `step` counts from 0."""
    peak = spec.lr if peak is None else peak
    begin = warmup = steps_of(spec.warmup, spec.steps)
    if step < warmup:
        return peak * (step + 1) / warmup
    if spec.decay == "wsd":
        begin = max(warmup, spec.steps - max(1, round(spec.decay_share * spec.steps)))
    if spec.decay == "constant" or step < begin:
        return peak
    done = (step - begin) / max(1, spec.steps - begin)
    left = 0.5 * (1 + math.cos(math.pi * done)) if spec.decay == "cosine" else 1 - done
    return peak * (spec.final_lr + (1 - spec.final_lr) * left)


def momentum(spec: TrainConfig, step: int) -> float:
    """Muon's momentum in a step: it grows over the first steps, and does not depend on how many there will be."""
    first = min(FIRST_MOMENTUM, spec.muon_momentum)
    return first + (spec.muon_momentum - first) * min(1.0, step / MOMENTUM_STEPS)


def orthogonal(matrices: Tensor) -> Tensor:
    """(N, rows, columns): about the orthogonal factor U V' of each U S V'; zeros stay zeros."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True).clamp(min=SMALLEST)
    if x.shape[2] <= 1.5 * x.shape[1]:
        for _ in range(ITERATIONS):
            x = _polynomial(x @ x.mT) @ x
    else:  # multiply the polynomials first: they are smaller than x, and the result differs by rounding only
        gram = x @ x.mT
        product = factor = _polynomial(gram)
        for _ in range(ITERATIONS - 1):
            gram = gram @ factor @ factor  # that of factor @ x, as all of them commute
            factor = _polynomial(gram)
            product = factor @ product
        x = product @ x
    return x.mT if tall else x


def _polynomial(gram: Tensor) -> Tensor:
    """The polynomial a + b G + c G G of matrices G, (N, rows, rows)."""
    a, b, c = COEFFICIENTS
    result = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
    result.diagonal(dim1=1, dim2=2).add_(a)
    return result


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised. Every group has `parts` beside `params`: for each matrix the rows of its parts."""

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, momentum: float) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": 0.0, "parts": ()})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move all matrices that have a gradient."""
        members = (
            (p, parts, group)
            for group in self.param_groups
            for p, parts in zip(group["params"], group["parts"], strict=True)
            if p.grad is not None
        )
        for some in _portions(members):
            updates = [self._direction(p, group["momentum"]) for p, _, group in some]
            split = (update.split(parts) for update, (_, parts, _) in zip(updates, some, strict=True))
            _orthogonalise([part for parts in split for part in parts])
            for (p, _, group), update in zip(some, updates, strict=True):
                p.mul_(1 - group["lr"] * group["weight_decay"])
                checkpoint.local(p).add_(_share(update, p).to(p.dtype), alpha=-group["lr"])

    def _direction(self, p: Tensor, momentum: float) -> Tensor:
        """The momentum one step ahead, after the gradient has joined it: the whole matrix, also where p is sharded."""
        state, gradient = self.state[p], p.grad
        assert gradient is not None
        if not state:
            state.update(self.empty_state(p))
        mean: Tensor = state["momentum"].lerp_(gradient, 1 - momentum)
        ahead = checkpoint.full(gradient.lerp(mean, momentum))
        return ahead.to(torch.promote_types(ahead.dtype, torch.float32))

    @staticmethod
    def empty_state(p: Tensor) -> dict[str, Tensor]:
        """What a checkpoint holds of a matrix, before the first step."""
        return {"momentum": torch.zeros_like(p)}


Member = tuple[Tensor, Sequence[int], dict[str, Any]]  # a matrix, the rows of its parts, and its group


def _portions(members: Iterable[Member]) -> Iterator[list[Member]]:
    """Lists of matrices, which are not more than fit into memory together."""
    some: list[Member] = []
    for member in members:
        if some and sum(p.numel() for p, *_ in some) + member[0].numel() > AT_ONCE:
            yield some
            some = []
        some.append(member)
    if some:
        yield some


def _orthogonalise(parts: Sequence[Tensor]) -> None:
    """Replace matrices by their orthogonal factors, scaled so that one with more rows than columns moves as far."""
    shapes: dict[torch.Size, list[Tensor]] = {}
    for part in parts:
        shapes.setdefault(part.shape, []).append(part)
    for (rows, columns), equal in shapes.items():
        scale = math.sqrt(max(1.0, rows / columns))
        for part, factor in zip(equal, orthogonal(torch.stack(equal)), strict=True):
            torch.mul(factor, scale, out=part)


def _share(update: Tensor, like: Tensor) -> Tensor:
    """The part of a whole matrix that this process has of `like`."""
    if not hasattr(like, "device_mesh"):
        return update
    from torch.distributed.tensor import DTensor, Replicate

    mesh, placements = like.device_mesh, like.placements  # type: ignore[attr-defined]
    return DTensor.from_local(update, mesh, [Replicate()], run_check=False).redistribute(mesh, placements).to_local()


# -- the optimizers of a run -----------------------------------------------------------------------------------------


def parameter_groups(model: nn.Module, spec: TrainConfig) -> list[dict[str, Any]]:
    """The weights that have a gradient, in groups with one optimizer, one learning rate and one decay each.

    The backbone says which weights are matrices for Muon (`parts` is not None) and which are not decayed, the model
    which have another rate than train.lr.
    """
    rates = model.rates() if isinstance(model, LanguageModel) else {}
    backbone = model.backbone
    matrices: dict[str, Parts] = {}
    spared: set[str] = set()
    if isinstance(backbone, Network):
        spared = {f"backbone.{name}" for name in backbone.no_decay()}
        if spec.optimizer == "muon":
            matrices = {f"backbone.{name}": parts for name, parts in backbone.matrices().items()}
    groups: dict[tuple[bool, float, float], dict[str, Any]] = {}
    for name, p in model.named_parameters():
        if p.requires_grad:
            rate, decay = rates.get(name, 1.0), 0.0 if name in spared else spec.weight_decay
            empty: dict[str, Any] = {"params": [], "rate": rate, "weight_decay": decay, "parts": []}
            group = groups.setdefault((name in matrices, rate, decay), empty)
            group["params"].append(p)
            if name in matrices:
                group["parts"].append(_rows(matrices[name], p))
    return list(groups.values())


def _rows(parts: Parts, matrix: Tensor) -> list[int]:
    """The rows of the parts of a matrix, from their number or as they are."""
    rows = [matrix.shape[0] // parts] * parts if isinstance(parts, int) else list(parts)
    assert sum(rows) == matrix.shape[0], f"parts of {rows} rows are not a matrix of {matrix.shape[0]}"
    return rows


def build_optimizers(model: nn.Module, spec: TrainConfig, fused: bool) -> list[torch.optim.Optimizer]:
    """The optimizers of all weights that have a gradient: AdamW, after Muon where the settings ask for it."""
    groups = parameter_groups(model, spec)
    optimizers: list[torch.optim.Optimizer] = []
    matrices = [group for group in groups if group["parts"]]
    if matrices:
        optimizers.append(Muon(matrices, spec.muon_lr, spec.muon_momentum))
    elif spec.optimizer == "muon":
        raise UserError(
            "train.optimizer=muon is for the weight matrices of the blocks, and here none of them is trained; "
            "set train.optimizer=adamw"
        )
    others = [{key: group[key] for key in ("params", "rate", "weight_decay")} for group in groups if not group["parts"]]
    if others:
        optimizers.append(
            torch.optim.AdamW(
                others,
                lr=spec.lr,
                betas=spec.betas,
                eps=spec.adam_eps,
                weight_decay=spec.weight_decay,
                fused=True if fused else None,
            )
        )
    return optimizers


def set_rates(optimizers: Iterable[torch.optim.Optimizer], spec: TrainConfig, step: int) -> None:
    """Give every group the learning rate, and the momentum, of a step."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["rate"] * learning_rate(spec, step, optimizer.defaults["lr"])
            if isinstance(optimizer, Muon):
                group["momentum"] = momentum(spec, step)


def empty_state(optimizer: torch.optim.Optimizer, p: Tensor) -> dict[str, Tensor]:
    """What an optimizer keeps of a weight, all zeros: to be filled from a checkpoint."""
    if isinstance(optimizer, Muon):
        return optimizer.empty_state(p)
    place = p.device if optimizer.defaults["fused"] else torch.device("cpu")
    step = torch.zeros((), dtype=torch.float32, device=place)
    return {"step": step, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
