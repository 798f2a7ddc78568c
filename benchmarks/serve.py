"""How fast is the server? Throughput and latency under 1 to 128 clients, a long request among short ones, memory.

A network of about 5M random weights (6 x 256, bytes; --method mdlm, ar or block) is served by `unmask serve` in a
separate process; clients talk HTTP from this one. The same requests, of mixed lengths and steps, are also written by
the library in one batch, and by a server with batches of one. All of this is repeated --repeats times. The machine's
speed drifts, so every run of a server stands between two of the offline batch and is compared with their mean; ± is the
standard error over the rounds.

    throughput   written tokens per second; latency of whole requests, p50 and p99
    long         p50 of short requests of 8 clients, without and with a constant long request beside them
    memory       of the server after each tenth of many tiny requests

Targets: with 32 clients 0.9 of the offline batch; the long request costs short ones at most a factor of 1.5; memory
stays as it is. With blocks, steps are those of a block; an AR model has none.

    python benchmarks/serve.py                                       twenty minutes on 2 cores
    python benchmarks/serve.py --method block --block 16 --steps 4   four calls a block, at most
    python benchmarks/serve.py --requests 16 --repeats 1 --tiny 200  a look
    python benchmarks/serve.py --compare --clients 32                MDLM, blocks and AR in turns, each with a server

The last one writes every text with MDLM's plan (as many steps as tokens, and 32), in blocks (one token a call, and four
steps a block of 16) and by AR, and also counts tokens for a second of the server's CPU time: a figure that hardly
depends on what else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import unmask
from unmask.config import Config
from unmask.data.tokenization import bytes_tokenizer
from unmask.lm import LM, Job
from unmask.models import registry
from unmask.sampling.params import SamplingParams

NETWORKS = {"5m": (6, 256, 8), "toy": (1, 32, 2)}  # blocks, width, heads
LENGTHS = (16, 24, 32, 48, 64, 96, 128, 192, 256)
Body = dict[str, Any]


def random_folder(folder: Path, name: str, length: int, method: str, block: int) -> Path:
    """A saved model with random weights and a head that is not zero."""
    blocks, width, heads = NETWORKS[name]
    torch.manual_seed(0)
    config = Config().override(
        [
            f"model.method={method}",
            *([f"block.size={block}"] if method == "block" else []),
            f"model.n_blocks={blocks}",
            f"model.hidden_dim={width}",
            f"model.n_heads={heads}",
            "data.tokenizer=bytes",
            f"data.length={length}",
            "train.ema=0",
        ]
    )
    tokenizer = bytes_tokenizer()
    model = registry.model(config, tokenizer.vocab)
    for key, weight in model.named_parameters():
        if "adaLN" in key or "linear" in key:
            torch.nn.init.normal_(weight, std=0.02)
    return LM(model, tokenizer, config).save_pretrained(folder / name)


def mixed(n: int, most: int, steps: Sequence[int], seed: int = 0) -> list[Body]:
    """Requests of mixed lengths and steps."""
    rng = random.Random(seed)
    lengths = [length for length in LENGTHS if length <= most]
    return [{"prompt": "", "length": rng.choice(lengths), **choose_steps(steps, rng), "seed": i} for i in range(n)]


def choose_steps(steps: Sequence[int], rng: random.Random) -> Body:
    """One of these numbers of steps, if there are any."""
    return {"steps": rng.choice(steps)} if steps else {}


def offline(lm: LM, bodies: Sequence[Body], batch: int) -> float:
    """Seconds of the library for all requests in one batch that refills."""
    jobs = [
        Job(lm.prompt_canvas("", body["length"]), SamplingParams(steps=body.get("steps"), seed=body["seed"]))
        for body in bodies
    ]
    begun = time.perf_counter()
    for _ in lm.run(jobs, batch_size=batch):
        pass
    return time.perf_counter() - begun


# -- a client --------------------------------------------------------------------------------------------------------


class Client:
    """One connection that stays open."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: Body | None = None) -> bytes:
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.streams
        data = b"" if body is None else json.dumps(body).encode()
        writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n".encode()
            + data
        )
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = int(re.search(r"content-length: (\d+)", head)[1])  # type: ignore[index]
        answer = await reader.readexactly(size)
        assert head.startswith("http/1.1 200"), answer
        return answer

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


@dataclass(frozen=True)
class Run:
    """What clients saw."""

    seconds: float
    tokens: int
    latencies: list[float]

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds

    def at(self, share: float) -> float:
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def load(port: int, bodies: Sequence[Body], clients: int) -> Run:
    """All requests through so many clients, each with the next one as soon as it has its answer."""
    left, latencies = list(reversed(bodies)), []

    async def client() -> None:
        connection = Client(port)
        while left:
            body = left.pop()
            begun = time.perf_counter()
            await connection.ask("POST", "/v1/infill", body)
            latencies.append(time.perf_counter() - begun)
        connection.close()

    begun = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(min(clients, len(bodies)))))
    return Run(time.perf_counter() - begun, sum(body["length"] for body in bodies), latencies)


async def beside(port: int, bodies: Sequence[Body], clients: int, long: Body) -> Run:
    """The same, while one long request after the other is under way."""

    async def forever() -> None:
        connection, seed = Client(port), 0
        while True:
            seed += 1
            await connection.ask("POST", "/v1/infill", {**long, "seed": seed})

    other = asyncio.ensure_future(forever())
    await asyncio.sleep(0.2)
    found = await load(port, bodies, clients)
    assert not other.done(), "the long request has failed"
    other.cancel()
    return found


async def figure(port: int, name: str) -> float:
    connection = Client(port)
    text = (await connection.ask("GET", "/metrics")).decode()
    connection.close()
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))


@contextlib.contextmanager
def serving(folder: Path, threads: int, *options: str) -> Iterator[tuple[int, int]]:
    """A server in a separate process: its port, and the id of the process."""
    words = [sys.executable, "-m", "unmask", "serve", f"net={folder}", "--port", "0", "--device", "cpu", *options]
    env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=env) as process:
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            assert line.startswith("serving"), line + process.stderr.read()
            yield int(line.rpartition(":")[2].split()[0]), process.pid
        finally:
            process.terminate()
            process.communicate(timeout=60)


# -- measurements ----------------------------------------------------------------------------------------------------


def throughput(args: argparse.Namespace, lm: LM, port: int, single: int) -> dict[str, Any]:
    """Every number of clients against the offline batch and the server of one at a time."""
    bodies = mixed(args.requests, args.length, args.steps)
    tokens = sum(body["length"] for body in bodies)
    batch: list[float] = []  # rates of the offline batch, one before each run and one after the last
    runs: dict[str, list[Run]] = {}
    shares: dict[str, list[float]] = {}
    offline(lm, bodies[: args.batch], args.batch)  # warm up
    asyncio.run(load(port, bodies[: args.batch], args.batch))
    kinds = [(str(clients), port, clients) for clients in args.clients] + [("one at a time", single, args.batch)]
    for _ in range(args.repeats):
        batch.append(tokens / offline(lm, bodies, args.batch))
        for name, where, clients in kinds:
            run = asyncio.run(load(where, bodies, clients))
            batch.append(tokens / offline(lm, bodies, args.batch))
            runs.setdefault(name, []).append(run)
            shares.setdefault(name, []).append(2 * run.rate / (batch[-2] + batch[-1]))
    table: dict[str, Any] = {"offline": {"tokens_per_second": statistics.mean(batch), "of_offline": (1.0, 0.0)}}
    for name, found in runs.items():
        table[name] = {
            "tokens_per_second": statistics.mean(run.rate for run in found),
            "of_offline": mean_and_error(shares[name]),
            "p50": statistics.median(run.at(0.5) for run in found),
            "p99": statistics.median(run.at(0.99) for run in found),
        }
    base = shares["one at a time"]
    for name, row in table.items():
        relative = shares.get(name, [1.0] * len(base))
        row["of_one_at_a_time"] = mean_and_error([a / b for a, b in zip(relative, base, strict=True)])
    return table


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and its standard error."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return statistics.mean(values), error


def long_among_short(args: argparse.Namespace, port: int) -> dict[str, float]:
    """The p50 of short requests without and with a long one, alternately."""
    steps = {"steps": 16} if args.steps else {}
    short = [{"prompt": "", "length": min(32, args.length), **steps, "seed": i} for i in range(args.requests)]
    long = {"prompt": "", "length": args.length, **({"sampler": "first-hitting"} if args.steps else {})}
    alone, both = [], []
    for _ in range(args.repeats):
        alone.append(asyncio.run(load(port, short, 8)).at(0.5))
        both.append(asyncio.run(beside(port, short, 8, long)).at(0.5))
    ratio = statistics.median(b / a for a, b in zip(alone, both, strict=True))
    return {"alone": statistics.median(alone), "beside": statistics.median(both), "ratio": ratio}


def memory(args: argparse.Namespace, port: int) -> list[float]:
    """Megabytes of the server after each tenth of the tiny requests."""
    found = []
    for tenth in range(10):
        bodies = [
            {"prompt": "", "length": 4 + i % 5, **({"steps": 2} if args.steps else {}), "seed": tenth * args.tiny + i}
            for i in range(args.tiny // 10)
        ]
        asyncio.run(load(port, bodies, 16))
        found.append(asyncio.run(figure(port, "process_resident_memory_bytes")) / 1e6)
    return found


COMPARED: dict[str, tuple[str, Body]] = {  # method, and what requests say
    "MDLM, as many steps as tokens": ("mdlm", {"sampler": "first-hitting"}),
    "MDLM, 32 steps": ("mdlm", {"steps": 32}),
    "blocks of 16, one token a call": ("block", {"sampler": "first-hitting"}),
    "blocks of 16, 4 steps a block": ("block", {"steps": 4}),
    "AR": ("ar", {}),
}


def cpu_seconds(process: int) -> float:
    """The CPU time of a process so far (Linux)."""
    after_name = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def compare(args: argparse.Namespace) -> None:
    """Throughput of methods with the largest number of clients, in turns."""
    clients, results = max(args.clients), {}
    bodies = [body | {"steps": None} for body in mixed(args.requests, args.length, args.steps)]
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        servers = {}
        for method in ("mdlm", "block", "ar"):
            folder = random_folder(Path(place) / method, args.network, args.length, method, 16)
            options = ("--batch-size", str(args.batch), "--timeout", "3600")
            servers[method] = stack.enter_context(serving(folder, args.threads, *options))
        found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in COMPARED}
        for number in range(args.repeats + 1):
            for name, (method, how) in COMPARED.items():
                port, process = servers[method]
                some = bodies if number else bodies[:4]  # the first round warms up
                before = cpu_seconds(process)
                run = asyncio.run(load(port, [{**body, **how} for body in some], clients))
                if number:
                    found[name].append((run.rate, run.tokens / (cpu_seconds(process) - before), run.at(0.5)))
    print(f"{clients} clients, {args.requests} requests, {args.threads} threads, {args.repeats} rounds")
    print(f"{'':32}{'tokens/s':>10}{'tokens/CPU s':>14}{'times AR':>10}{'p50 s':>8}")
    ar = statistics.median(cpu for _, cpu, _ in found["AR"])
    for name, runs in found.items():
        rate, cpu, late = (statistics.median(values) for values in zip(*runs, strict=True))
        results[name] = {"tokens_per_second": rate, "tokens_per_cpu_second": cpu, "p50": late}
        print(f"{name:32}{rate:10.0f}{cpu:14.0f}{cpu / ar:10.2f}{late:8.2f}")
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=NETWORKS, default="5m")
    parser.add_argument("--method", choices=("mdlm", "ar", "block"), default="mdlm")
    parser.add_argument("--block", type=int, default=16, help="tokens of a block, with --method block")
    parser.add_argument("--steps", type=int, nargs="+", default=[8, 16, 32], help="steps that requests choose from")
    parser.add_argument("--length", type=int, default=512, help="tokens of a row of the model, and of the long request")
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--tiny", type=int, default=10_000, help="tiny requests for the memory")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--compare", action="store_true", help="only the throughput of MDLM, blocks and AR, in turns")
    parser.add_argument("--json", help="write the figures to this file, too")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    if args.compare:
        compare(args)
        return
    if args.method == "ar":
        args.steps = []
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        folder = random_folder(Path(place), args.network, args.length, args.method, args.block)
        lm = unmask.load(folder)
        size = sum(weight.numel() for weight in lm.model.parameters())
        blocks = f", blocks of {args.block}" if args.method == "block" else ""
        print(f"{args.method}{blocks}, {size / 1e6:.1f}M weights, {args.threads} threads, steps {args.steps or 'none'}")
        print(f"{args.requests} requests, {args.repeats} repeats")
        port, _ = stack.enter_context(serving(folder, args.threads, "--batch-size", str(args.batch)))
        single, _ = stack.enter_context(serving(folder, args.threads, "--batch-size", "1"))
        table = throughput(args, lm, port, single)
        fill = asyncio.run(figure(port, "unmask_batch_rows_sum")) / asyncio.run(figure(port, "unmask_batch_rows_count"))
        long = long_among_short(args, port)
        used = memory(args, port)
        cache = asyncio.run(figure(port, "unmask_cache_peak_bytes")) / 1e6
    print(f"\n{'clients':>14} {'tokens/s':>9} {'of offline':>13} {'of one at a time':>17} {'p50 s':>8} {'p99 s':>8}")
    for name, row in table.items():
        late = "".join(f"{row[key]:9.3f}" if key in row else " " * 9 for key in ("p50", "p99"))
        ratios = [f"{row[key][0]:.2f} ± {row[key][1]:.2f}" for key in ("of_offline", "of_one_at_a_time")]
        print(f"{name:>14} {row['tokens_per_second']:9.0f} {ratios[0]:>13} {ratios[1]:>17}{late}")
    print(f"\nsequences per network call: {fill:.1f}")
    print(
        f"p50 of short requests: {long['alone']:.3f} s alone, {long['beside']:.3f} s beside a long one, "
        f"ratio {long['ratio']:.2f} (at most 1.5)"
    )
    growth = used[-1] - used[0]
    print(f"memory after each tenth of {args.tiny} tiny requests, MB: " + " ".join(f"{mb:.0f}" for mb in used))
    print(f"growth after the first tenth: {growth:.1f} MB")
    if cache:
        print(f"keys and values: at most {cache:.1f} MB")
    if args.json:
        result = {"throughput": table, "long": long, "memory_mb": used, "rows_per_call": fill, "weights": size}
        result |= {"method": args.method, "block": args.block, "steps": args.steps, "cache_mb": cache}
        Path(args.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
