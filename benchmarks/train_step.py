"""How much of the machine does a whole training step use? LM1B size: 12 x 768, V = 30522, L = 128, batch 8, float32.

Useful FLOP/s = (6 x matrix parameters of the backbone x tokens + 6 x head parameters x masked rows + attention) over
the time of the whole step (masking, dropout, forward, backward, clipping, AdamW and EMA included), as a fraction of
the machine's own sgemm peak in the same run; and against the same step with full (B, L, V) logits.

    python benchmarks/train_step.py [--steps 20]
    python benchmarks/train_step.py --optimizer muon [--steps 5]

The second command measures what Muon adds to a step, and how exact it is: ours (float32), torch's (bf16) and AdamW on
the same matrices, those of networks of 8 x 256 and 12 x 768, as a share of the step with AdamW in the same run.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch
from torch import Tensor, nn

from measure import sgemm_peak
from unmask.config import Config, ModelConfig, TrainConfig
from unmask.distributed import World
from unmask.models import registry
from unmask.models.masked import MaskedDiffusion
from unmask.process.keys import Keys
from unmask.process.masking import corrupt
from unmask.process.schedule import strata
from unmask.training.optimizers import COEFFICIENTS, ITERATIONS, Muon, orthogonal, parameter_groups
from unmask.training.step import Trainer
from unmask.types import Batch, TokenNats, Vocab

LENGTH, BATCH = 128, 8


class RandomRows:
    """Rows of random tokens in place of a data set."""

    def __len__(self) -> int:
        return 4096

    def rows(self, indices: np.ndarray) -> tuple[np.ndarray, None]:
        rng = np.random.default_rng(indices[0])
        return rng.integers(1000, 30_000, (len(indices), LENGTH)), None

    def labels(self, indices: np.ndarray) -> None:
        return None

    def present(self, tokens: np.ndarray, counts: None) -> None:
        return None

    def given(self, tokens: np.ndarray) -> None:
        return None

    def padding(self, tokens: np.ndarray) -> None:
        return None


class FullLogits(MaskedDiffusion):
    """The textbook step: logits and log-softmax of every position, then the mask."""

    def nats(self, batch: Batch, keys: Keys) -> TokenNats:
        draw = self.law.draw(strata(batch.index, batch.total, keys), self.schedule)
        uniform = keys.uniform("mask", batch.index, LENGTH)
        z = corrupt(batch.tokens, draw.keep[:, None], uniform, self.vocab.mask)
        log_x = self.log_x(self.hidden(z, draw.t))  # (B, L, V)
        nll = -log_x.gather(-1, batch.tokens[..., None]).squeeze(-1)
        nats = torch.where(z == self.vocab.mask, nll * draw.scale[:, None].float(), 0.0)
        return TokenNats(nats, batch.weight())


def masked_rows(model: MaskedDiffusion, keys: Keys) -> int:
    """How many rows a step masks (the same arithmetic as in the model)."""
    index = torch.arange(BATCH)
    keep = model.law.draw(strata(index, BATCH, keys), model.schedule).keep
    return int((keys.uniform("mask", index, LENGTH) >= keep[:, None]).sum())


def useful_flops(model: MaskedDiffusion, rows: int) -> float:
    """Matrix products of forward and backward that the loss depends on."""
    blocks = model.backbone.blocks
    matrices = sum(p.numel() for b in blocks for n, p in b.named_parameters() if p.dim() == 2 and "adaLN" not in n)
    dim = model.backbone.hidden_dim
    attention = 3 * len(blocks) * 4 * LENGTH**2 * dim * BATCH  # q kᵀ and p v, forward and twice in backward
    return 6 * matrices * BATCH * LENGTH + 6 * dim * model.vocab.size * rows + attention


# -- optimizers ------------------------------------------------------------------------------------------------------


def optimizers(blocks: int, width: int, turns: int) -> None:
    """Print what the step of each optimizer costs in processor time, as a share of a whole step with AdamW."""
    config = Config(
        model=ModelConfig(hidden_dim=width, n_blocks=blocks, n_heads=width // 64),
        train=TrainConfig(batch_size=BATCH, steps=10**6, optimizer="muon"),
    )
    torch.manual_seed(0)
    model = registry.model(config, Vocab(30_522, 103, 0))
    (group,) = [group for group in parameter_groups(model, config.train) if group["parts"]]
    pairs = zip(group["params"], group["parts"], strict=True)
    parts = [nn.Parameter(part.clone()) for p, rows in pairs for part in p.detach().split(rows)]
    for p in (*group["params"], *parts):
        p.grad = torch.randn_like(p)
    steps = {
        "Muon, ours": Muon([group], lr=0.02, momentum=0.95).step,
        "Muon, torch's": torch.optim.Muon(parts, lr=0.02).step,
        "AdamW": torch.optim.AdamW(parts, fused=True).step,
    }
    trainer = Trainer(config.changed(train={"optimizer": "adamw"}), model, World(0, 1, torch.device("cpu")))
    kept = [p.grad for p in group["params"]]
    seconds: dict[str, list[float]] = {name: [] for name in (*steps, "whole")}
    for turn in range(turns + 1):
        for p in group["params"]:
            p.grad = None
        start = time.process_time()
        trainer.step(RandomRows(), turn)  # type: ignore[arg-type]
        seconds["whole"].append(time.process_time() - start)
        for p, gradient in zip(group["params"], kept, strict=True):
            p.grad = gradient
        for name, step in steps.items():
            start = time.process_time()
            step()
            seconds[name].append(time.process_time() - start)
    medians = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    whole = medians.pop("whole")
    print(f"{blocks} x {width}: a step of {BATCH} x {LENGTH} tokens with AdamW takes {whole:.2f} s of processor time")
    print(f"  {'step of the matrices':22}{'seconds':>9}{'of the step':>13}{'of one of 64 rows':>19}")
    for name, value in medians.items():
        print(f"  {name:22}{value:9.3f}{value / whole:13.2f}{value / whole * BATCH / 64:19.2f}")


def exactness(rows: int, columns: int) -> None:
    """Print the error of the orthogonal factor against the same polynomial of the singular values, in float64."""
    u, _, vt = torch.linalg.svd(torch.randn(rows, columns, dtype=torch.float64), full_matrices=False)
    for name, least in (("all alike", 1.0), ("down to 1e-6", 1e-6)):
        values = torch.logspace(0, np.log10(least), len(u.T), dtype=torch.float64)
        matrix, truth = u * values @ vt, values / values.norm()
        for _ in range(ITERATIONS):
            truth = sum(c * truth**power for c, power in zip(COEFFICIENTS, (1, 3, 5), strict=True))
        exact = u * truth @ vt
        theirs = nn.Parameter(torch.zeros(rows, columns))
        theirs.grad = matrix.float()
        torch.optim.Muon([theirs], lr=1.0, momentum=0.0, weight_decay=0.0, nesterov=False).step()
        scale = max(1.0, rows / columns) ** 0.5
        found: dict[str, Tensor] = {"ours": orthogonal(matrix.float()[None])[0], "torch's": -theirs.detach() / scale}
        errors = {name: float((each.double() - exact).norm() / exact.norm()) for name, each in found.items()}
        shown = ", ".join(f"{own} {error:.1e}" for own, error in errors.items())
        print(f"  {rows} x {columns}, singular values {name}: relative error {shown}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--optimizer", choices=["adamw", "muon"], default="adamw", help="muon: what it adds to a step")
    args = parser.parse_args()
    if args.optimizer == "muon":
        print(f"threads {torch.get_num_threads()}, torch {torch.__version__}, {args.steps} steps, medians")
        for blocks, width in ((8, 256), (12, 768)):
            optimizers(blocks, width, args.steps)
            for columns in (width, 4 * width):
                exactness(width, columns)
        return
    config = Config(model=ModelConfig(), train=TrainConfig(batch_size=BATCH, steps=10**6))
    torch.manual_seed(0)
    model = registry.model(config, Vocab(30_522, 103, 0))
    assert isinstance(model, MaskedDiffusion)
    full = FullLogits(model.backbone, model.schedule, model.law)
    trainer = Trainer(config, model, World(0, 1, torch.device("cpu")))
    data = RandomRows()
    times: dict[str, list[float]] = {"rows": [], "full": []}
    rates: list[float] = []
    peak = sgemm_peak()
    for step in range(args.steps + 2):
        for kind, module in (("rows", model), ("full", full)):
            trainer.module = module
            if kind == "full" and step % 4:  # the slow one needs fewer looks
                continue
            start = time.perf_counter()
            trainer.step(data, step)  # type: ignore[arg-type]
            seconds = time.perf_counter() - start
            if step >= 2:
                times[kind].append(seconds)
                if kind == "rows":
                    rates.append(useful_flops(model, masked_rows(model, trainer.keys.at(step))) / seconds)
        if step % 5 == 0:
            peak = max(peak, sgemm_peak(0.5))
    rows_time, full_time = statistics.median(times["rows"]), statistics.median(times["full"])
    rate = statistics.median(rates)
    print(f"threads {torch.get_num_threads()}, torch {torch.__version__}, {args.steps} steps, medians")
    print(f"sgemm peak                    {peak / 1e9:8.1f} GFLOP/s")
    print(f"training step, masked rows    {rows_time:8.2f} s   {BATCH * LENGTH / rows_time:,.0f} tokens/s")
    print(f"useful FLOP/s                 {rate / 1e9:8.1f} GFLOP/s = {rate / peak:.2f} of peak (target 0.70)")
    print(f"training step, full logits    {full_time:8.2f} s   {full_time / rows_time:.2f} x the time")


if __name__ == "__main__":
    main()
