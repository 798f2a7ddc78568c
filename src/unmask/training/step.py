"""The training step: gradients, clipping, optimizers, EMA, and nothing about the method.

Sums are back-propagated and divided once by the all-reduced weight, so accumulation and any number of processes give
the same step. All randomness is a function of (seed, step, slot in the global batch); dropout, which uses torch's
global generator, is reseeded from (seed, step, micro-step, rank). So there is no random state to save: resuming is
arithmetic.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..config import Config
from ..data.loader import drop_labels, flip_strands, train_batch
from ..data.pack import Rows
from ..distributed import World, reshard, wrap
from ..hub import checkpoint
from ..process.keys import Keys
from ..types import Batch, Progress, UserError
from .divergence import check_finite
from .memory import keep_pages, recompute_blocks
from .optimizers import build_optimizers, empty_state, learning_rate, set_rates

Cut = Callable[[Config, Any, range, Keys], Batch]  # some slots of the global batch of step keys.step, from some data


def text_batch(config: Config, rows: Rows, slots: range, keys: Keys) -> Batch:
    """Some slots of a step on rows of text; labels are hidden at random."""
    batch = train_batch(
        rows,
        seed=config.seed,
        step=keys.step,
        batch_size=config.train.batch_size,
        slots=slots,
        attend_pads=config.data.attend_pads,
    )
    if config.data.reverse_complement:
        batch = flip_strands(batch, keys)
    return drop_labels(batch, config.train.label_drop, keys)


def before_last(model: nn.Module, last: int) -> list[nn.Module]:
    """The parts of the backbone before its last blocks."""
    backbone: Any = model.backbone
    blocks = getattr(backbone, "blocks", None)
    if not isinstance(blocks, nn.ModuleList):
        raise UserError(f"train.last_blocks counts blocks, and the network {backbone.name} has none; leave it out")
    if last > len(blocks):
        raise UserError(f"train.last_blocks={last} is more than the {len(blocks)} blocks of the network; leave it out")
    before = itertools.takewhile(lambda child: child is not blocks, backbone.children())
    return [*before, *blocks[: len(blocks) - last]]


class Ema:
    """A moving average of the weights, by name; its memory is short at the beginning: min(decay, (1+n)/(10+n))."""

    def __init__(self, model: nn.Module, decay: float, adapters: bool = False) -> None:
        self.decay = decay
        kept = [(name, p) for name, p in model.named_parameters() if p.requires_grad or not adapters]
        self.weights = {name: p.detach().clone() for name, p in kept} if decay else {}

    def update(self, model: nn.Module, n: int) -> None:
        """Move towards the weights after step n (counted from 0)."""
        if self.decay:
            decay = min(self.decay, (1 + n) / (10 + n))
            weights = {name: p for name, p in model.named_parameters() if name in self.weights}
            averages = [checkpoint.local(self.weights[name]) for name in weights]
            torch._foreach_lerp_(averages, [checkpoint.local(p.detach()) for p in weights.values()], 1 - decay)

    @contextmanager
    def swapped(self, model: nn.Module) -> Iterator[None]:
        """The averaged weights in place of the model's, inside the context."""
        self._swap(model)
        try:
            yield
        finally:
            self._swap(model)

    def _swap(self, model: nn.Module) -> None:
        reshard(model)
        for name, p in model.named_parameters():
            if name in self.weights:
                weights, average = checkpoint.local(p.data), checkpoint.local(self.weights[name])
                kept = weights.clone()
                weights.copy_(average)
                average.copy_(kept)


class Trainer:
    """A model, its optimizers, its average, and the step that moves them.

    A model is anything with a `backbone` and `forward(batch, keys) -> (sum, weight)`; `cut` makes its batches.
    Weights without a gradient stay as they are.
    """

    def __init__(self, config: Config, model: nn.Module, world: World, cut: Cut = text_batch) -> None:
        self.config, self.world, self.model, self.cut = config, world, model.to(world.device), cut
        spec = config.train
        if world.device.type == "cpu":
            keep_pages()
        if spec.batch_size < world.size:
            raise UserError(f"train.batch_size={spec.batch_size} is smaller than the {world.size} processes")
        if spec.strategy == "fsdp" and len({len(shares) for shares in self._all_micro_slots()}) > 1:
            raise UserError(
                f"train.batch_size={spec.batch_size} gives some of the {world.size} processes more micro-batches than "
                "others, which fsdp cannot do; make it a multiple of the processes"
            )
        if spec.last_blocks is not None:
            for part in before_last(self.model, spec.last_blocks):
                part.requires_grad_(False)
        self.module = wrap(self.model, spec.strategy, world)
        if spec.compile:
            backbone: Any = self.model.backbone
            backbone.forward = torch.compile(backbone.forward)
        if spec.recompute:
            recompute_blocks(self.model.backbone)
        self.ema = Ema(self.model, spec.ema, spec.lora.rank is not None)
        one_place = world.device.type in ("cpu", "cuda") and spec.strategy == "ddp"
        self.optimizers = build_optimizers(self.model, spec, fused=one_place)
        self.keys = Keys(config.seed).fork("train")
        self.progress: Progress | None = None  # hears how many micro-batches of a step are done

    def autocast(self) -> Any:
        """bf16 where the config says so."""
        if self.config.train.precision == "bf16":
            return torch.autocast(self.world.device.type, dtype=torch.bfloat16)
        return nullcontext()

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The averaged weights (raw where there is no average) and the precision of training, inside the context."""
        with self.ema.swapped(self.model), self.autocast():
            yield

    def micro_slots(self) -> list[range]:
        """The slots of the global batch that are this process's, cut for accumulation."""
        return self._all_micro_slots()[self.world.rank]

    def _all_micro_slots(self) -> list[list[range]]:
        """The same for every process."""
        spec, result = self.config.train, []
        for rank in range(self.world.size):
            share = replace(self.world, rank=rank).slots(spec.batch_size)
            size = spec.micro_batch_size or len(share)
            result.append([share[i : i + size] for i in range(0, len(share), size)])
        return result

    def step(self, data: Any, step: int, stop: Any = False) -> tuple[dict[str, float], bool]:
        """One optimizer step on data that `cut` understands: its figures, and whether any process was asked to stop.

        "tokens" counts those of the text, hidden or not. `stop` is true as soon as this process is asked to stop: it is
        read after every micro-batch. If that is before the last one, nothing has changed, and there are no figures.
        """
        keys = self.keys.at(step)
        micros = self.micro_slots()
        # All processes ask each other equally often, after what DDP sends with the first forward pass of a step and
        # before the gradients, which travel with the last backward pass.
        questions = max(map(len, self._all_micro_slots())) - 1
        total = torch.zeros(4, dtype=torch.float64)  # loss, its weight, tokens, who was asked to stop
        self.module.train()
        for micro, slots in enumerate(micros):
            last = micro == len(micros) - 1
            batch = self.cut(self.config, data, slots, keys)
            counted = batch.counted().sum().item()  # before it is moved: nobody waits for a GPU
            batch = batch.to(self.world.device)
            torch.manual_seed(keys.torch_seed("dropout", micro * self.world.size + self.world.rank))
            with self._sync(last):
                with self.autocast():
                    loss, weight = self.module(batch, keys)
                for _ in range(questions if last else min(micro, 1)):
                    questions -= 1
                    if self._asked(stop):
                        self._forget_gradients()
                        return {}, True
                loss.backward()
            total += torch.tensor([loss.item(), weight.item(), counted, 0.0], dtype=torch.float64)
            if self.progress and len(micros) > 1:
                self.progress(micro + 1, len(micros))
        total[3] = float(bool(stop))
        loss_sum, weight_sum, tokens, stops = self.world.sum(total).tolist()
        check_finite("loss", loss_sum, step, self.config.train)
        weight_sum = max(weight_sum, 1.0)  # a step of cross-entropy may, by chance, have masked nothing
        norm = self._apply(weight_sum, step)
        figures = {"loss": loss_sum / weight_sum, "lr": learning_rate(self.config.train, step), "grad_norm": norm}
        return figures | {"tokens": tokens, "examples": self.config.train.batch_size}, stops > 0

    def _asked(self, stop: Any) -> bool:
        """Whether any process was asked to stop (all processes call)."""
        return bool(self.world.sum(torch.tensor([float(bool(stop))])).item())

    def _sync(self, last: bool) -> Any:
        """Gradients travel between processes only with the last micro-batch."""
        if isinstance(self.module, nn.parallel.DistributedDataParallel) and not last:
            return self.module.no_sync()
        return nullcontext()

    def _apply(self, weight: float, step: int) -> float:
        """Divide by the weight, clip, move, average."""
        spec = self.config.train
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        # DDP and FSDP average over processes what we want summed.
        scale = self.world.size / weight
        norm = float(checkpoint.full(nn.utils.get_total_norm(gradients, foreach=True))) * scale
        check_finite("gradient", norm, step, spec)
        if spec.clip is not None and norm > spec.clip:
            scale *= spec.clip / norm
        torch._foreach_mul_([checkpoint.local(g) for g in gradients], scale)
        set_rates(self.optimizers, spec, step)
        for optimizer in self.optimizers:
            optimizer.step()
        self._forget_gradients()
        self.ema.update(self.model, step)
        return norm

    def _forget_gradients(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    # -- what a checkpoint holds -------------------------------------------------------------------------------------

    def groups(self) -> dict[str, dict[str, Tensor]]:
        """All numbers of the run by group and name; sharded where the model is."""
        reshard(self.model)
        moments = {
            f"{kind}.{name}": value
            for name, p in self.model.named_parameters()
            for optimizer in self.optimizers
            for kind, value in optimizer.state.get(p, {}).items()
        }
        weights = dict(self.model.state_dict())
        if self.config.train.lora.rank is not None:  # the others are those of train.start
            weights = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        groups = {"model": weights, "optimizer": moments}
        return groups | ({"ema": self.ema.weights} if self.ema.weights else {})

    def save(self, folder: Path) -> None:
        """Write the numbers into a folder: whole, or each process its shard (all processes call)."""
        if self.config.train.strategy == "fsdp":
            checkpoint.write_shards(folder, self.groups())
        elif self.world.main:
            checkpoint.write_whole(folder, self.groups())

    def restore(self, folder: Path) -> None:
        """Restore everything from a checkpoint of either kind, strictly."""
        for optimizer in self.optimizers:
            for p in (p for group in optimizer.param_groups for p in group["params"]):
                optimizer.state[p] = empty_state(optimizer, p)
        for group, targets in self.groups().items():
            checkpoint.read_into(folder, group, targets)
