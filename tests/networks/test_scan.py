"""The selective scan: four ways against sums in plain Python, gradients, memory, cost; the short convolution."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from types import ModuleType

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from unmask.networks.kernels import scan
from unmask.networks.kernels.scan import (
    scan_chunked,
    scan_fused,
    scan_loop,
    selective_scan,
    short_conv,
    short_conv_reference,
)

WAYS = {"loop": scan_loop, "chunked": scan_chunked, "fused": scan_fused, "chosen": selective_scan}
each_way = pytest.mark.parametrize("way", WAYS)
NAMES = ("x", "delta", "a", "b", "c", "d", "state")
LENGTHS = (1, 2, 31, 32, 33, 64, 100)
SIZES = ((1, 1, 1), (2, 5, 3), (3, 2, 16))  # rows, channels, numbers of a state
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}


def given(
    rows: int, length: int, inner: int, n: int, *, state: bool = False, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """x, delta, A, B, C, D and, if asked for, the state; every number drawn."""
    g = torch.Generator().manual_seed(1000 * rows + 10 * length + n)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    out = [normal(rows, length, inner), F.softplus(normal(rows, length, inner) - 1), -torch.exp(normal(inner, n))]
    out += [normal(rows, length, n), normal(rows, length, n), normal(inner)]
    return [tensor.to(dtype) for tensor in (*out, *((normal(rows, n, inner),) if state else ()))]


def slow(*tensors: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """y and the last state, a number at a time."""
    x, delta, a, b, c, d = (tensor.double().tolist() for tensor in tensors[:6])
    rows, length, inner = tensors[0].shape
    n = tensors[2].shape[1]
    h = tensors[6].double().tolist() if len(tensors) > 6 else np.zeros((rows, n, inner)).tolist()
    y = np.zeros((rows, length, inner))
    for r in range(rows):
        for t in range(length):
            for e in range(inner):
                total = d[e] * x[r][t][e]
                for k in range(n):
                    step = delta[r][t][e]
                    h[r][k][e] = math.exp(step * a[e][k]) * h[r][k][e] + step * x[r][t][e] * b[r][t][k]
                    total += c[r][t][k] * h[r][k][e]
                y[r, t, e] = total
    return y, np.array(h)


def near(found: Tensor, truth: Tensor | np.ndarray, tolerance: float) -> None:
    truth = torch.as_tensor(truth, dtype=torch.float64)
    assert found.shape == truth.shape
    gap = (found.detach().double() - truth.detach()).abs()
    assert (gap <= tolerance * max(1.0, float(F.pad(truth.detach().abs().flatten(), (1, 0)).max()))).all()


def gradients(way: Callable[..., tuple[Tensor, Tensor]], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Of every input, from random gradients of the output and of the last state."""
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    y, last = way(*leaves)
    g = torch.Generator().manual_seed(5)
    ups = [torch.randn(out.shape, generator=g, dtype=torch.float64).to(out.dtype) for out in (y, last)]
    return torch.autograd.grad((y, last), leaves, ups)


# -- the formula -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("state", [False, True], ids=["from nothing", "from a state"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_all_ways_are_the_formula_and_have_its_gradients(size, state, dtype):
    rows, inner, n = size
    for length in LENGTHS:
        tensors = given(rows, length, inner, n, state=state, dtype=dtype)
        y, last = slow(*tensors)
        truth = gradients(scan_loop, tensors)  # by autograd, from the formula itself; checked against differences below
        for way in WAYS.values():
            found = way(*tensors)
            assert all(tensor.dtype == dtype for tensor in found)
            near(found[0], y, TOLERANCE[dtype])
            near(found[1], last, TOLERANCE[dtype])
            for own, other in zip(gradients(way, tensors), truth, strict=True):
                near(own, other, 5 * TOLERANCE[dtype])


@pytest.mark.parametrize("state", [False, True])
@each_way
def test_gradients_are_those_of_small_differences(way, state, monkeypatch):
    monkeypatch.setattr(scan, "LONGEST", 3)  # several chunks, the last one shorter
    leaves = [tensor.requires_grad_() for tensor in given(2, 7, 2, 2, state=state)]
    assert torch.autograd.gradcheck(WAYS[way], leaves)


@pytest.mark.parametrize(("longest", "at_once"), [(1, 2**19), (7, 2**19), (64, 40), (64, 1), (100, 2**19)])
def test_where_chunks_end_is_of_no_matter(longest, at_once, monkeypatch):
    tensors = given(2, 50, 3, 4, state=True)
    y, last = slow(*tensors)
    truth = gradients(scan_loop, tensors)
    monkeypatch.setattr(scan, "LONGEST", longest)
    monkeypatch.setattr(scan, "AT_ONCE", at_once)
    found = scan_fused(*tensors)
    near(found[0], y, 1e-12)
    near(found[1], last, 1e-12)
    for own, other in zip(gradients(scan_fused, tensors), truth, strict=True):
        near(own, other, 1e-11)


@pytest.mark.parametrize("chunk", [1, 5, 50, 64])
def test_the_chunks_of_the_reference(chunk):
    tensors = given(2, 50, 3, 4, state=True)
    y, last = slow(*tensors)
    found = scan_chunked(*tensors, chunk=chunk)
    near(found[0], y, 1e-12)
    near(found[1], last, 1e-12)


@each_way
def test_two_halves_are_the_whole(way):
    x, delta, a, b, c, d, state = given(2, 80, 3, 4, state=True)
    y, last = slow(x, delta, a, b, c, d, state)
    first, middle = WAYS[way](x[:, :37], delta[:, :37], a, b[:, :37], c[:, :37], d, state)
    second, end = WAYS[way](x[:, 37:], delta[:, 37:], a, b[:, 37:], c[:, 37:], d, middle)
    near(torch.cat((first, second), 1), y, 1e-12)
    near(end, last, 1e-12)


@each_way
def test_a_state_that_is_forgotten_at_once_makes_no_nan(way):
    """Decays of exp(-1e4): ratios of products of them would be 0/0."""
    x, delta, a, b, c, d, state = given(2, 100, 3, 4, state=True, dtype=torch.float32)
    delta = delta + 1e3 * (torch.arange(100) % 7 == 3)[None, :, None]
    a = a - 10
    tensors = [x, delta, a, b, c, d, state]
    assert float((delta[..., None] * a).min()) < -1e4
    y, last = slow(*tensors)
    found = WAYS[way](*tensors)
    near(found[0], y, 1e-5)
    near(found[1], last, 1e-5)
    own, truth = gradients(WAYS[way], tensors), gradients(scan_loop, [tensor.double() for tensor in tensors])
    for tensor, other in zip(own, truth, strict=True):
        assert tensor.isfinite().all()
        near(tensor, other, 1e-4)


@each_way
def test_a_column_without_a_step_leaves_the_state(way):
    """What it holds is of no matter for the columns after it; it reads the state itself."""
    tensors = given(2, 40, 3, 4, state=True)
    still = torch.zeros(40, dtype=torch.bool)
    still[[0, 5, 6, 17, 39]] = True
    tensors[1] = tensors[1] * ~still[:, None]
    kept = [tensor[:, ~still] if i in (0, 1, 3, 4) else tensor for i, tensor in enumerate(tensors)]
    y, last = slow(*kept)
    other = [tensor.clone() for tensor in tensors]
    for i in (0, 3):
        other[i][:, still] = 1e6
    for one in (tensors, other):
        found = WAYS[way](*one)
        near(found[0][:, ~still], y, 1e-12)
        near(found[1], last, 1e-12)
    begins = WAYS[way](*tensors)[0][:, 0]
    near(begins, torch.einsum("rn,rne->re", tensors[4][:, 0], tensors[6]) + tensors[5] * tensors[0][:, 0], 1e-12)


def test_half_precision_computes_in_float32():
    tensors = given(2, 70, 3, 4, dtype=torch.float32)
    half = [tensor.bfloat16() if i != 2 else tensor for i, tensor in enumerate(tensors)]
    wide = [tensor.float() for tensor in half]
    y, last = slow(*wide)
    for autocast in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            found = selective_scan(*half)
        assert found[0].dtype == found[1].dtype == torch.float32
        near(found[0], y, 2e-5)  # bfloat16 has 3 digits
        near(found[1], last, 2e-5)
    leaves = [tensor.clone().requires_grad_() for tensor in half]
    with torch.autocast("cpu", torch.bfloat16):
        y_, last_ = selective_scan(*leaves)
    (y_.sum() + last_.sum()).backward()
    truth = [tensor.clone().requires_grad_() for tensor in wide]
    sum(out.sum() for out in scan_loop(*truth)).backward()
    for leaf, other in zip(leaves, truth, strict=True):
        assert leaf.grad.dtype == leaf.dtype
        near(leaf.grad, other.grad, 1e-2 if leaf.dtype == torch.bfloat16 else 1e-4)


@pytest.mark.parametrize("rows", [1, 2])
def test_arguments_are_not_written_into(rows):
    """With one row time first is the same memory."""
    tensors = [tensor.requires_grad_() for tensor in given(rows, 40, 3, 4, state=True)]
    copies = [tensor.detach().clone() for tensor in tensors]
    y, last = scan_fused(*tensors)
    torch.autograd.grad((y, last), tensors, (torch.ones_like(y), torch.ones_like(last)))
    assert all(torch.equal(a, b) for a, b in zip(tensors, copies, strict=True))


def test_gradients_that_are_not_asked_for_or_spread_out():
    """Only y or only the last state counts, as one number, or only some inputs learn."""
    for pick in (0, 1):
        tensors = given(2, 40, 3, 4, state=True)
        for learns in ([0], [2, 5], list(range(7))):
            found = []
            for way in (scan_fused, scan_loop):
                leaves = [tensor.clone().requires_grad_(i in learns) for i, tensor in enumerate(tensors)]
                way(*leaves)[pick].sum().backward()
                found.append([leaves[i].grad for i in learns])
            for own, truth in zip(*found, strict=True):
                near(own, torch.zeros_like(own) if truth is None else truth, 1e-11)


# -- what it costs ----------------------------------------------------------------------------------------------------


def kept_numbers(way: Callable[..., tuple[Tensor, Tensor]], tensors: Sequence[Tensor]) -> int:
    """How many numbers autograd keeps for backward."""
    found: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        found[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        way(*[tensor.clone().requires_grad_() for tensor in tensors])
    return sum(tensor.numel() for tensor in found.values())


def test_backward_keeps_only_some_states():
    rows, inner, n = 2, 16, 16
    one, two = (kept_numbers(scan_fused, given(rows, length, inner, n)) for length in (256, 512))
    a_column = rows * (2 * inner + 2 * n)  # x, delta, B, C
    states = rows * inner * n
    assert one <= 256 * a_column + states * (256 // 64) + inner * n + 8 * inner
    assert two - one <= 256 * a_column + states * (256 // 64)
    assert one < 0.35 * 256 * states < kept_numbers(scan_loop, given(rows, 256, inner, n))
    last = scan_fused(*given(rows, 256, inner, n))[1]
    assert last.untyped_storage().nbytes() == 8 * states, "a last state that is kept keeps no chunk with it"


def nodes_of(way: Callable[..., tuple[Tensor, Tensor]], length: int) -> Counter[str]:
    """The names of the nodes of the graph."""
    y, _ = way(*[tensor.requires_grad_() for tensor in given(1, length, 2, 2)])
    todo, seen = [y.grad_fn], {y.grad_fn}
    while todo:
        for node, _ in todo.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                todo.append(node)
    return Counter(node.name() for node in seen)


def whole_tensors(nodes: Counter[str]) -> int:
    """Nodes whose backward writes a whole tensor of zeros for a part of it."""
    return sum(n for name, n in nodes.items() if name.startswith(("Select", "Slice", "Index", "Narrow", "Split")))


def test_no_loop_takes_columns_by_their_index():
    assert whole_tensors(nodes_of(scan_loop, 50)) == 0
    assert nodes_of(scan_loop, 50)["UnbindBackward0"] == 4
    assert whole_tensors(nodes_of(scan_chunked, 64)) == whole_tensors(nodes_of(scan_chunked, 640)) <= 2
    assert sum(nodes_of(scan_fused, 640).values()) < 12

    def indexed(x, delta, a, b, c, d):
        h = torch.zeros(1, 2, 2, dtype=x.dtype)
        for t in range(x.shape[1]):
            h = torch.exp(delta[:, t, None] * a.T) * h + (delta * x)[:, t, None] * b[:, t, :, None]
        return h, h

    assert whole_tensors(nodes_of(indexed, 50)) > 100  # the count can see what it is there for


class Written(TorchDispatchMode):
    """Counts the numbers that operations put out."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.numbers += sum(t.numel() for t in (out if isinstance(out, (tuple, list)) else [out]) if torch.is_tensor(t))
        return out


@each_way
def test_work_is_linear_in_the_length(way):
    """Forward and backward: twice the columns, twice the numbers written."""
    counts = []
    for length in (64, 128, 256):
        tensors = given(2, length, 4, 4)
        with Written() as written:
            gradients(WAYS[way], tensors)
        counts.append(written.numbers)
    assert counts[2] - counts[1] < 2.1 * (counts[1] - counts[0])  # 4 times, were it quadratic


# -- the kernel of another package ------------------------------------------------------------------------------------


def stand_in(u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, return_last_state=False):
    """mamba_ssm's selective_scan_fn as its documentation has it: time last, the state as (rows, channels, N)."""
    rows, inner, length = u.shape
    n = A.shape[1]
    assert delta.shape == u.shape and A.shape == (inner, n) and D.shape == (inner,)
    assert B.shape == C.shape == (rows, n, length)
    assert all(tensor.stride(-1) == 1 for tensor in (u, delta, A, B, C)), "the kernel reads rows of memory"
    assert z is None and delta_bias is None and not delta_softplus and return_last_state
    h, columns = torch.zeros(rows, inner, n, dtype=u.dtype), []
    for u_t, delta_t, b_t, c_t in zip(*(tensor.unbind(2) for tensor in (u, delta, B, C)), strict=True):
        h = torch.exp(torch.einsum("bd,dn->bdn", delta_t, A)) * h + torch.einsum("bd,bn,bd->bdn", delta_t, b_t, u_t)
        columns.append(torch.einsum("bdn,bn->bd", h, c_t))
    return torch.stack(columns, 2) + u * D[:, None], h


@pytest.mark.parametrize("size", [(2, 5, 3), (3, 4, 4)], ids=str)
def test_the_kernel_is_told_what_it_wants(size):
    rows, inner, n = size
    tensors = given(rows, 7, inner, n)
    y, last = slow(*tensors)
    found = scan._by_kernel(stand_in, *tensors)
    near(found[0], y, 1e-12)
    near(found[1], last, 1e-12)
    own = gradients(lambda *args: scan._by_kernel(stand_in, *args), tensors)
    for tensor, truth in zip(own, gradients(scan_loop, tensors), strict=True):
        near(tensor, truth, 1e-11)


def test_the_kernel_is_found_where_it_is_installed(monkeypatch):
    scan._mamba_ssm.cache_clear()
    try:
        for name in ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.selective_scan_interface"):
            monkeypatch.setitem(sys.modules, name, None)
        assert scan._mamba_ssm() is None
        scan._mamba_ssm.cache_clear()
        for name in ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.selective_scan_interface"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        sys.modules["mamba_ssm.ops.selective_scan_interface"].selective_scan_fn = stand_in
        assert scan._mamba_ssm() is stand_in
        tensors = given(2, 5, 3, 2)
        near(selective_scan(*tensors)[0], slow(*tensors)[0], 1e-12)  # on the processor it is not asked
    finally:
        scan._mamba_ssm.cache_clear()


# -- the short convolution --------------------------------------------------------------------------------------------


def torch_conv(x: Tensor, weight: Tensor, bias: Tensor, before: Tensor | None = None) -> Tensor:
    """torch's own, on the columns before and the new ones."""
    width = weight.shape[1]
    if before is None:
        before = torch.zeros(x.shape[0], width - 1, x.shape[2], dtype=x.dtype)
    conv = F.conv1d(torch.cat((before, x), 1).mT, weight[:, None], bias, groups=len(weight))
    return conv.mT


@pytest.mark.parametrize("way", [short_conv, short_conv_reference])
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("width", [1, 2, 4, 5])
@pytest.mark.parametrize("length", [1, 3, 20])
def test_the_short_convolution_is_torchs(length, width, before, way):
    g = torch.Generator().manual_seed(length)
    shapes = [(2, length, 3), (3, width), (3,)] + ([(2, width - 1, 3)] if before else [])
    leaves = [torch.randn(*shape, generator=g, dtype=torch.float64).requires_grad_() for shape in shapes]
    truth, found = torch_conv(*leaves), way(*leaves)
    near(found, truth, 1e-13)
    dy = torch.randn(found.shape, generator=g, dtype=torch.float64)
    for own, other in zip(torch.autograd.grad(found, leaves, dy), torch.autograd.grad(truth, leaves, dy), strict=True):
        near(own, other, 1e-12)


def test_the_short_convolution_by_hand():
    x = torch.tensor([1.0, 2.0, 4.0])[None, :, None]
    weight, bias = torch.tensor([[100.0, 10.0, 1.0]]), torch.tensor([0.5])
    assert short_conv(x, weight, bias).flatten().tolist() == [1.5, 12.5, 124.5]
    before = torch.tensor([7.0, 3.0])[None, :, None]
    assert short_conv(x, weight, bias, before).flatten().tolist() == [731.5, 312.5, 124.5]


def test_the_short_convolution_in_half_precision():
    g = torch.Generator().manual_seed(0)
    x, weight, bias = torch.randn(2, 9, 3, generator=g), torch.randn(3, 4, generator=g), torch.randn(3, generator=g)
    leaves = [x.bfloat16().requires_grad_(), weight.requires_grad_(), bias.requires_grad_()]
    found = short_conv(*leaves)
    found.float().sum().backward()
    assert found.dtype == torch.bfloat16 and leaves[1].grad.dtype == torch.float32
    near(found, torch_conv(x, weight, bias).detach(), 3e-2)
