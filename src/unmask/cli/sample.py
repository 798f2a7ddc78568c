"""`unmask sample`: text from scratch, around given text, or for every line of a template file."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UserError
from .shared import (
    Device,
    Exact,
    Json,
    Model,
    Quantize,
    TokenizerOf,
    Weights,
    Which,
    With,
    check_writable,
    err_console,
    json_text,
    load_lm,
    print_json,
    read_settings,
    used_weights,
)

if TYPE_CHECKING:
    from ..data.canvas import Canvas
    from ..lm import LM
    from ..sampling import SamplingParams
    from ..types import Sample


def sample(
    ctx: typer.Context,
    model: Model,
    n: Annotated[int, typer.Option("-n", help="Number of samples.")] = 1,
    length: Annotated[int | None, typer.Option(help="Number of tokens (default: the model's length).")] = None,
    prompt: Annotated[str | None, typer.Option(help="Text that every sample begins with.")] = None,
    suffix: Annotated[str | None, typer.Option(help="Text that every sample ends with.")] = None,
    infill: Annotated[
        str | None, typer.Option(help="Text with gaps: {{3}} is a gap of 3 tokens, {{2-6}} one of 2 to 6.")
    ] = None,
    template: Annotated[
        str | None, typer.Option(help="JSON lines with a text, prompt or suffix each (- reads standard input).")
    ] = None,
    exact: Exact = False,
    particles: Annotated[
        int | None,
        typer.Option(
            help="With a regex, a schema or choices: draw each sample out of so many weighted runs, by the model's "
            "plain law given that its text fits.",
            min=1,
        ),
    ] = None,
    more: With = None,
    batch_size: Annotated[int, typer.Option(help="Sequences per network call.")] = 16,
    both_strands: Annotated[
        bool,
        typer.Option(
            "--both-strands",
            help="DNA: average the network's predictions over both strands, so that they are treated alike.",
        ),
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show how masks become words.")] = False,
    html: Annotated[str | None, typer.Option(help="Write a replay to this HTML file.")] = None,
    fasta: Annotated[str | None, typer.Option(help="DNA and proteins: write the samples to this FASTA file.")] = None,
    tokenizer: TokenizerOf = None,
    quantize: Quantize = None,
    which: Which = "last",
    weights: Weights = "ema",
    device: Device = "auto",
    as_json: Json = False,
    as_lines: Annotated[
        bool,
        typer.Option("--jsonl", help="Print one JSON line per sample, with the step and probability of every token."),
    ] = False,
    **settings: Any,
) -> None:
    """Write text: from scratch, after a prompt, before a suffix, into gaps; of any length, in any order."""
    if infill is not None and (prompt is not None or suffix is not None):
        raise UserError("give either --prompt or --infill; a prompt is a text with a gap at its end")
    if template is not None and (infill is not None or prompt is not None or suffix is not None or watch or html):
        raise UserError("--template does not go with --prompt, --suffix, --infill, --watch or --html")
    if template is not None and fasta is not None:
        raise UserError("--template does not go with --fasta; its samples come as JSON lines")
    if particles is not None and (template is not None or watch or html):
        raise UserError("--particles does not go with --template, --watch or --html")
    if as_json and as_lines:
        raise UserError("give either --json (one document) or --jsonl (one line per sample)")
    from ..sampling.params import SamplingParams

    explicit = read_settings(ctx, more)
    SamplingParams(**explicit)  # raises before a large model is loaded
    lm = load_lm(model, which, weights, device, tokenizer, quantize=quantize)
    if fasta is not None or both_strands:
        lm = _dna(lm, fasta, both_strands)
    options = lm.sampling_params(explicit, exact or particles is not None).settle(lm.model)
    protocol = sample_protocol(lm, model, which, weights) | ({"strands": "both"} if both_strands else {})
    if template is not None:
        protocol |= options.describe()
        _template(lm, template, options if exact else explicit, n, length, batch_size, protocol, as_json)
        _advise(options)
        return
    one = n == 1 and not (as_json or as_lines or watch or fasta or particles)
    samples, protocol = write_samples(
        lm,
        SampleRequest(n, length, prompt, suffix, infill, particles),
        options,
        batch_size=batch_size,
        watch=watch,
        html=html,
        stream=_show if one else None,
        protocol=protocol,
    )
    _advise(options, one)
    if fasta is not None:
        from ..dna.strands import write_fasta

        write_fasta(fasta, samples, model)
        err_console.print(f"wrote {len(samples):,} sequences to {fasta}", markup=False)
    if as_json:
        print_json({"samples": [s.as_dict() for s in samples], "protocol": protocol})
        return
    for s in samples if as_lines or fasta is None else ():
        if as_lines:
            sys.stdout.write(json_text(s.as_dict(tokens=True) | {"index": s.index}) + "\n")
            continue
        if len(samples) > 1:
            drafts = f", {s.accepted} of {s.drafted} drafted tokens accepted" if s.drafted else ""
            err_console.print(f"[dim]-- seed {s.seed}, {s.network_calls} network calls{drafts}[/dim]")
        if s.log_chance is not None and s.effective is not None:
            worth = f"{particles} particles are worth {s.effective:.1f} texts"
            err_console.print(f"[dim]-- a free text fits with chance {math.exp(s.log_chance):.3g}; {worth}[/dim]")
        sys.stdout.write("" if one else s.text + "\n")
    if html is not None:
        err_console.print(f"replay: {html}", markup=False)


def _dna(lm: Any, fasta: str | None, both_strands: bool) -> Any:
    """The model averaged over both strands, if this was requested; only models of DNA have two."""
    from ..dna.strands import conjoined, need_letters

    if fasta is not None:
        need_letters(lm, "--fasta")
        check_writable(fasta)
    return conjoined(lm) if both_strands else lm


def _advise(options: SamplingParams, streamed: bool = False) -> None:
    """Say which settings the model recommended, after what was streamed and before what is printed."""
    if streamed:
        sys.stdout.write("\n")
        sys.stdout.flush()
    if options.advice:
        err_console.print(options.advice, markup=False)


def _show(piece: str) -> None:
    """Text as soon as it is fixed."""
    sys.stdout.write(piece)
    if piece:
        sys.stdout.flush()


def _template(
    lm: Any, path: str, how: Any, n: int, length: int | None, batch_size: int, protocol: Any, as_json: bool
) -> None:
    """Write all lines of a template file; exit with code 2 at the end if any was wrong."""
    from ..progress import progress_bar
    from .templates import BadLine, read_lines, write_template

    if n < 1:
        raise UserError(f"-n {n} must be at least 1")
    lines = read_lines(path)
    if not lines:
        raise UserError(f"the template file {path} is empty; write one JSON object per line")
    bad, documents = 0, []
    with progress_bar("writing") as progress:
        for document in write_template(lm, lines, how, n=n, length=length, batch_size=batch_size, report=progress):
            if isinstance(document, BadLine):
                bad += 1
                reason = " ".join(document.reason.splitlines())
                err_console.print(f"unmask: line {document.number} of {path}: {reason}", markup=False)
                document = {"line": document.number, "error": document.reason}
            documents.append(document)
            if not as_json:
                sys.stdout.write(json_text(document) + "\n")
                sys.stdout.flush()
    if as_json:
        print_json({"lines": documents, "protocol": protocol})
    if bad:
        raise typer.Exit(2)


@dataclass(frozen=True)
class SampleRequest:
    """What to write: samples, a prompt, gaps, or the lines of a template file."""

    n: int = 1
    length: int | None = None
    prompt: str | None = None
    suffix: str | None = None
    infill: str | None = None
    particles: int | None = None

    def canvas(self, lm: LM, options: SamplingParams) -> Canvas:
        """The canvas that all n samples share."""
        if self.n < 1:
            raise UserError(f"-n {self.n} must be at least 1")
        windowed = options.stride is not None
        if self.infill is not None:
            if self.length is not None:
                raise UserError("--length does not go with --infill; the text and its gaps say how long it is")
            return lm.gap_canvas(self.infill, windowed=windowed, options=options)
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
    """Samples and their protocol; watched, streamed, or saved as an HTML replay."""
    from ..lm import Job, TextStream
    from ..process.keys import check_seed
    from ..progress import progress_bar
    from ..sampling.trace import Trace
    from ..serve.replay import write_html
    from .terminal import Watcher

    if html is not None:
        check_writable(html)
    options = options.settle(lm.model)
    canvas = request.canvas(lm, options)
    protocol |= {"length": len(canvas.ids), **options.describe(), "seed": options.seed, "batch_size": batch_size}
    protocol |= lm.prompt_builder.unknown.facts()
    if request.particles is not None:
        check_seed(options.seed + request.n - 1)
        drawn = lm.write([canvas] * request.n, options, batch_size=batch_size, particles=request.particles)
        return drawn, protocol | {"particles": request.particles}
    jobs = [Job(canvas, replace(options, seed=check_seed(options.seed + i))) for i in range(request.n)]
    canvases = [canvas.ids] * request.n
    trace = Trace(lm.tokenizer, canvases, protocol) if html is not None else None
    done: dict[int, Sample] = {}
    with ExitStack() as stack:
        watcher = stack.enter_context(Watcher(lm.tokenizer, canvases)) if watch else None
        quiet = watch or stream is not None
        progress = stack.enter_context(progress_bar("writing", quiet=quiet))
        pieces = TextStream(lm.prompt_builder, canvas, options.stop)
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
    import torch

    from ..evaluation.likelihood import compute_dtype

    return {
        "model": path,
        "checkpoint": which,
        "weights": used_weights(lm, weights),
        "dtype": compute_dtype(lm.model),
        "device": str(lm.model.device),
        "torch": torch.__version__,
    }
