"""Linear layers in int8, for inference on the CPU: a quarter of the memory, and about twice as fast.

A matrix has one scale for each of its rows. Inputs are rounded when they come, with one scale for each row as well, so
that what a row gives does not depend on the rows beside it. The product of whole numbers is exact (`torch._int_mm`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...errors import UserError
from ..interface import Network

LARGEST = 127
SMALLEST = 1e-30  # of a row of zeros


def in_whole_numbers(rows: Tensor) -> tuple[Tensor, Tensor]:
    """(N, dim) as int8, and the (N, 1) scales that its rows have to be multiplied by."""
    scale = rows.abs().amax(1, keepdim=True).clamp(min=SMALLEST) / LARGEST
    return (rows / scale).round_().to(torch.int8), scale


class Int8Linear(nn.Module):
    """A linear layer with its matrix in int8; bias and results are of the type that they were."""

    scale: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        matrix, scale = in_whole_numbers(linear.weight.detach().float())
        self.matrix, self.bias = nn.Parameter(matrix, requires_grad=False), linear.bias
        self.register_buffer("scale", scale[:, 0])
        self.dtype = linear.weight.dtype

    @property
    def weight(self) -> Tensor:
        """The matrix as it is meant, for networks that use a part of it only."""
        return (self.matrix * self.scale[:, None]).to(self.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(..., dim) to (..., out)."""
        if not x.numel():
            return x.new_zeros(*x.shape[:-1], len(self.matrix))
        whole, scale = in_whole_numbers(x.reshape(-1, x.shape[-1]).float())
        y = torch._int_mm(whole, self.matrix.t()).float().mul_(scale).mul_(self.scale)
        y = (y if self.bias is None else y + self.bias).to(x.dtype)
        return y.unflatten(0, x.shape[:-1])


def quantize(backbone: Network) -> None:
    """Replace the linear layers in the blocks of a network; embedding and head stay as they are."""
    names = [name.removesuffix(".weight") for name in backbone.matrices()]
    if not names:
        raise UserError(f"the {backbone.name} network has no linear layers in blocks that could be int8; leave it out")
    if any(weight.device.type != "cpu" for weight in backbone.parameters()):
        raise UserError("int8 is for the CPU; leave out quantize, or set device=cpu")
    for name in names:
        above, _, last = name.rpartition(".")
        setattr(backbone.get_submodule(above), last, Int8Linear(backbone.get_submodule(name)))  # type: ignore[arg-type]
    for weight in backbone.parameters():
        if weight.is_floating_point():
            weight.data = weight.data.clone()  # so that the mapped file of the other ones can go


def is_quantized(model: nn.Module) -> bool:
    """Whether layers of a model are int8."""
    return any(isinstance(part, Int8Linear) for part in model.modules())
