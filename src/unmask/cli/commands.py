"""What the commands do, as functions: between the command line and the library."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..config import Config, DataConfig
from ..data.canvas import Canvas
from ..data.pack import prepare
from ..distributed import world as join_world
from ..evaluation import ESTIMATORS, default_method, marked, read_texts, score
from ..evaluation.likelihood import Estimator, compute_dtype, evaluate
from ..evaluation.suites import SuiteResult, evaluate_suite, suite
from ..hub import checkpoint
from ..hub.resolve import load
from ..lm import LM, Job, TextStream
from ..models import registry
from ..process.keys import check_seed
from ..progress import progress_bar
from ..sampling import Sampler, make_sampler
from ..sampling.params import SamplingParams
from ..sampling.trace import Trace
from ..serve.replay import write_html
from ..training.text import TrainResult, train
from ..types import Likelihood, Sample, UserError
from .terminal import Watcher


def train_model(config: Config, out: str, *, quiet: bool = False) -> TrainResult:
    """Train, or continue; a new run with train.start begins with the weights of that model."""
    start = None
    if config.train.start is not None and not checkpoint.steps(Path(out)):
        start = load(config.train.start)
    return train(config, out, quiet=quiet, start=start)


def evaluate_model(
    path: str,
    *,
    data: str | None,
    split: str,
    bound: str | None,
    steps: int | None,
    draws: int,
    schedule: str | None,
    batch_size: int,
    rows: int | None,
    seed: int,
    which: str,
    weights: str,
    device: str,
    estimator: str = "times",
    label_column: str | None = None,
    local: str | None = None,
) -> Likelihood:
    """The bound of a saved model on a data set."""
    chosen = _estimator(estimator)
    with join_world(device) as world:
        lm = load(path, which=which, weights=weights, device=str(world.device))
        config = _with_law(lm.config, bound, steps, schedule)
        spec, own = _data(config.data, data, split, label_column, local)
        model = lm.model
        if (bound, steps, schedule) != (None, None, None):  # a model that has none of these says so
            model = model.under(registry.schedule(config.schedule), registry.law(config.objective, config.schedule))
        with world.first(), progress_bar("tokenizing", quiet=not world.main) as progress:
            prepared = prepare(spec, lm.tokenizer, splits=(own,), progress=progress, labels=lm.labels or None)
            if split == "all" and prepared.corpus.division is None:
                raise UserError(f"{spec.source} has splits of its own; name one: {', '.join(prepared.corpus.splits)}")
            split_rows = prepared.split(own)
        with progress_bar("evaluating", quiet=not world.main) as progress:
            return evaluate(
                model,
                split_rows,
                draws=draws,
                batch_size=batch_size,
                seed=seed,
                limit=rows,
                world=world,
                attend_pads=config.data.attend_pads,
                estimator=chosen,
                progress=progress,
                protocol={"model": path, "checkpoint": which, "weights": used_weights(lm, weights), "split": split},
            )


def evaluate_members(
    path: str,
    *,
    name: str,
    sets: list[str] | None,
    which: str,
    weights: str,
    device: str,
    estimator: str = "times",
    **how: Any,
) -> list[SuiteResult]:
    """The bound of a saved model on every set of a suite; `how` as in `evaluate_suite`."""
    chosen, members = _estimator(estimator), suite(name, sets)
    with join_world(device) as world:
        lm = load(path, which=which, weights=weights, device=str(world.device))
        return evaluate_suite(
            lm,
            members,
            world=world,
            estimator=chosen,
            **how,
            protocol={"model": path, "checkpoint": which, "weights": used_weights(lm, weights), "suite": name},
        )


def _estimator(name: str) -> Estimator:
    if name not in ESTIMATORS:
        raise UserError(f"unknown estimator {name!r}; choose one of {', '.join(ESTIMATORS)}")
    return ESTIMATORS[name]


def load_lm(path: str, which: str, weights: str, device: str) -> LM:
    """A saved model."""
    return load(path, which=which, weights=weights, device=device)


def used_weights(lm: LM, asked: str) -> str:
    """`raw` where a run kept no average."""
    return asked if lm.config.train.ema else "raw"


def _data(
    spec: DataConfig, source: str | None, split: str, label: str | None = None, local: str | None = None
) -> tuple[DataConfig, str]:
    """The data that were asked for, and the name of the split; `all` is a file or folder without any splitting."""
    if label is not None and label != "none" and spec.label is None:
        raise UserError(f"--label-column {label} needs a model that was trained with labels")
    if source is not None and not source.strip():
        raise UserError("--data is empty; give a name, a file or a folder")
    changes: dict[str, Any] = {}
    if source is not None:
        changes = {"source": source, "subset": None, "detokenizer": "auto", "local": None}
        changes |= {} if source == spec.source else {"intervals": None}
    if local is not None:
        if not local.strip():
            raise UserError("--local is empty; give the folder of the data set, or leave it out")
        changes["local"] = local
    if label is not None:
        changes["label"] = None if label == "none" else label
    if split == "all":
        changes |= {"valid_fraction": 0.0, "test_fraction": 0.0}
    return spec.model_copy(update=changes), "train" if split == "all" else split


def _with_law(config: Config, bound: str | None, steps: int | None, schedule: str | None) -> Config:
    """The config under the bound and schedule that were asked for."""
    changes = [f"schedule.name={schedule}"] if schedule else []
    if steps is not None and bound is None:
        bound = "discrete"
    if bound is not None:
        if bound == "continuous" and steps is not None:
            raise UserError("--steps belongs to --bound discrete")
        if bound == "discrete" and steps is None and (steps := config.objective.steps) is None:
            raise UserError("--bound discrete needs its number of steps; give one, for example --steps 1000")
        changes += [f"objective.bound={bound}", f"objective.steps={'null' if steps is None else steps}"]
        changes += ["objective.proposal=null"] if bound == "discrete" else []
    return config.override(changes)


@dataclass(frozen=True)
class SampleRequest:
    """What is to be written: samples, a prompt, gaps, or the lines of a template file."""

    n: int = 1
    length: int | None = None
    prompt: str | None = None
    suffix: str | None = None
    infill: str | None = None

    def canvas(self, lm: LM, options: SamplingParams) -> Canvas:
        """The canvas of all n samples."""
        if self.n < 1:
            raise UserError(f"-n {self.n} must be at least 1")
        windowed = options.stride is not None
        if self.infill is not None:
            if self.length is not None:
                raise UserError("--length does not go with --infill; the text and its gaps say how long it is")
            return lm.gap_canvas(self.infill, windowed=windowed)
        return lm.prompt_canvas(self.prompt or "", self.length, self.suffix or "", windowed)


def write_samples(
    lm: LM,
    request: SampleRequest,
    options: SamplingParams,
    *,
    batch_size: int = 16,
    watch: bool = False,
    html: str | None = None,
    stream: Callable[[str], object] | None = None,
    protocol: dict[str, Any],
) -> tuple[list[Sample], dict[str, Any]]:
    """Samples and the protocol they were drawn by; watched, streamed, or kept as an HTML replay."""
    if html is not None:
        check_writable(html)
    options = options.settle(lm.model)
    canvas = request.canvas(lm, options)
    protocol |= {"length": len(canvas.ids), **options.describe(), "seed": options.seed, "batch_size": batch_size}
    jobs = [Job(canvas, replace(options, seed=check_seed(options.seed + i))) for i in range(request.n)]
    canvases = [canvas.ids] * request.n
    trace = Trace(lm.tokenizer, canvases, protocol) if html is not None else None
    done: dict[int, Sample] = {}
    with ExitStack() as stack:
        watcher = stack.enter_context(Watcher(lm.tokenizer, canvases)) if watch else None
        quiet = watch or stream is not None
        progress = stack.enter_context(progress_bar("writing", quiet=quiet))
        pieces = TextStream(lm.painter, canvas, options.stop)
        left = [int((canvas.ids == lm.tokenizer.vocab.mask).sum())] * request.n
        total = sum(left)
        for state, sample in lm.run(jobs, batch_size=batch_size, tops=5 if trace else 0):
            for take in (watcher, trace):
                if take is not None:
                    take(state)
            if sample is not None:
                done[state.row] = sample
            if stream is not None:
                stream(pieces(state, sample))
            left[state.row] = 0 if state.done else int((state.canvas == lm.tokenizer.vocab.mask).sum())
            progress(total - sum(left), total)
    samples = [done[i] for i in range(request.n)]
    if trace is not None and html is not None:
        trace.finish(samples)
        write_html(trace, html)
    return samples, protocol


def sample_protocol(lm: LM, path: str, which: str, weights: str) -> dict[str, Any]:
    """Where samples come from."""
    return {
        "model": path,
        "checkpoint": which,
        "weights": used_weights(lm, weights),
        "dtype": compute_dtype(lm.model),
        "device": str(lm.model.device),
        "torch": torch.__version__,
    }


def check_writable(path: str) -> None:
    """Before minutes of work, not after them."""
    folder = Path(path).parent
    if not folder.is_dir():
        raise UserError(f"cannot write {path}: there is no folder {folder}")
    if Path(path).is_dir():
        raise UserError(f"cannot write {path}: it is a folder; give the name of a file")
    if not os.access(folder, os.W_OK):
        raise UserError(f"cannot write {path}: the folder {folder} may not be written to")


@dataclass(frozen=True)
class ScoreInput:
    """What is to be scored: texts as given or from a file, whole, or a span of each."""

    given: list[str]
    file: str | None = None
    spans: list[str] | None = None  # "4:7", of one given text
    marked: bool = False  # [[...]] encloses what is scored

    def read(self) -> tuple[list[str], list[Any]]:
        """(texts, the span of each or None)."""
        if bool(self.given) == (self.file is not None):
            raise UserError('give either texts or --file, for example: unmask score MODEL "The cat sat."')
        if self.spans and (len(self.given) != 1 or self.marked):
            raise UserError("--span is for one text and without --marked; several texts are marked as [[...]]")
        pairs: list[tuple[str, Any]] = [(text, None) for text in self.given]
        if self.file is not None:
            pairs = list(read_texts(self.file))
        if self.marked:
            pairs = [marked(text) for text, _ in pairs]
        if self.spans:
            pairs = [(self.given[0], [_offsets(span) for span in self.spans])]
        texts, spans = zip(*pairs, strict=True)
        return list(texts), list(spans)


def _offsets(text: str) -> tuple[int, int]:
    start, _, end = text.partition(":")
    if not (start.isdecimal() and end.isdecimal()):
        raise UserError(f"--span {text} must be the first character and the one after the last, for example 4:7")
    return int(start), int(end)


def score_texts(
    lm: LM,
    texts: ScoreInput,
    *,
    method: str | None = None,
    plan: str | None = None,
    plan_settings: dict[str, Any],
    label: str | None = None,
    **how: Any,
) -> tuple[list[str], Likelihood]:
    """The texts and their likelihood; a plan without a method means the likelihood of that plan."""
    given = {name: value for name, value in plan_settings.items() if value is not None}
    if plan is None and method == "orders" and given:
        plan = "plan"  # T-step sampling; without steps it is one token at a time
    if plan is None and given:
        raise UserError(f"--{next(iter(given))} is a setting of a plan; name one with --plan")
    order: Sampler | None = None if plan is None else make_sampler(plan, **given)
    if method is None:
        method = default_method(lm.model) if order is None else "plan" if order.deterministic else "orders"
    own, spans = texts.read()
    named = SamplingParams(label=label).label_id(lm.labels)
    with progress_bar("scoring") as progress:
        found = score(
            lm.model, lm.painter, own, method=method, span=spans, plan=order, label=named, progress=progress, **how
        )
    return own, found
