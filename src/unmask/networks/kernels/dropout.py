"""Dropout. On the CPU torch draws masks element by element on one core; here 16 random bits per element are used."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Zero elements with probability p and scale the rest, so that the expectation is unchanged.

    The stream is seeded by torch's global generator, as `F.dropout` is. On the CPU p is rounded to a multiple of
    2^-16, and the scale is that of the rounded p.
    """
    if not training or p == 0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, p, training=True)
    level = round(p * 65536)
    seed = int(torch.randint(2**62, ()))
    bits = np.random.SFC64(seed).random_raw(-(-x.numel() // 4)).view(np.uint16)[: x.numel()]
    dropped = torch.from_numpy(bits < level).view(x.shape)
    return x.masked_fill(dropped, 0.0) * (65536 / (65536 - level))
