"""`unmask serve`: models over HTTP, with a page."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UserError
from .shared import (
    Context,
    Device,
    Quantize,
    Template,
    TokenizerOf,
    Weights,
    Which,
    err_console,
    load_lm,
    with_template,
)

if TYPE_CHECKING:
    from ..lm import LM

LOCAL = ("127.0.0.1", "localhost", "::1")


def serve(
    models: Annotated[
        list[str], typer.Argument(help="Runs, folders, built-in models (tiny-en) or Hub ids; NAME=MODEL gives a name.")
    ],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is all of them.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 picks a free one.", min=0, max=65535)] = 8000,
    api_key_file: Annotated[
        str | None, typer.Option(help="File with the API key that clients must send (or set UNMASK_API_KEY).")
    ] = None,
    cors: Annotated[
        list[str] | None, typer.Option(help="An origin whose pages may send requests (may be repeated).")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A host name that clients may use for this server (may be repeated).")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Sequences per network call.", min=1)] = 32,
    max_queue: Annotated[
        int, typer.Option(help="Sequences that may wait; beyond that, requests get 429.", min=0)
    ] = 256,
    max_tokens: Annotated[int, typer.Option(help="Tokens of all current requests together.", min=1)] = 262_144,
    max_cache: Annotated[
        int | None,
        typer.Option(
            help="Megabytes of keys and values that a model keeps for its sequences (default: a quarter of the memory, "
            "shared by the models).",
            min=1,
        ),
    ] = None,
    prefix_cache: Annotated[
        bool,
        typer.Option(
            "--prefix-cache/--no-prefix-cache",
            help="Keep what was read of texts that have ended, so that the next turn of a chat reads only what is new.",
        ),
    ] = True,
    max_length: Annotated[int, typer.Option(help="Tokens per sequence.", min=1)] = 4096,
    max_steps: Annotated[int, typer.Option(help="Denoising steps per sequence.", min=1)] = 4096,
    max_n: Annotated[int, typer.Option(help="Samples per request.", min=1)] = 64,
    max_body: Annotated[int, typer.Option(help="Size of a request body in bytes.", min=1)] = 1_048_576,
    timeout: Annotated[float, typer.Option(help="Seconds that a request may take.", min=0.01, max=1e9)] = 300.0,
    grace: Annotated[
        float, typer.Option(help="Seconds that running requests get to finish when the server stops.", min=0, max=1e9)
    ] = 20.0,
    log_requests: Annotated[bool, typer.Option("--log-requests", help="Log one line per request.")] = False,
    log_prompts: Annotated[
        bool, typer.Option("--log-prompts", help="Also log the requests themselves, with their text.")
    ] = False,
    context: Context = None,
    template: Template = None,
    tokenizer: TokenizerOf = None,
    quantize: Quantize = None,
    which: Which = "last",
    weights: Weights = "ema",
    device: Device = "auto",
) -> None:
    """Serve models: a page to watch masks become words, and an API that OpenAI's clients can talk to."""
    from ..serve.app import LOOPBACK, make_app
    from ..serve.engine import Engine
    from ..serve.limits import Limits
    from ..serve.server import bind
    from ..serve.server import serve as run
    from ..serve.threads import run_in_thread
    from ..training.memory import share_heaps

    share_heaps()
    limits = Limits(
        batch=batch_size,
        queue=max_queue,
        tokens=max_tokens,
        cache=None if max_cache is None else max_cache * 1_000_000,
        length=max_length,
        steps=max_steps,
        n=max_n,
        body=max_body,
        timeout=timeout,
        grace=grace,
    )
    if tokenizer is not None and len(models) > 1:
        raise UserError(
            "--tokenizer is for a single model; write the one without a tokenizer as a folder: "
            "unmask convert MODEL DIR --tokenizer ..."
        )
    key = _key(api_key_file)
    if host not in LOCAL and key is None:
        err_console.print(
            f"unmask: {host} can be reached by others, and no API key is set; see --api-key-file", markup=False
        )
    sock = bind(host, port)  # before minutes of loading
    with contextlib.closing(sock):
        named = _names(models)
        how = (which, weights, device, tokenizer, quantize, context)
        lms = {name: with_template(run_in_thread(load_lm, path, *how), template) for name, path in named.items()}
        logging.basicConfig(
            level=logging.INFO if log_requests or log_prompts else logging.WARNING, format="%(asctime)s %(message)s"
        )
        engine = Engine(lms, limits, prefix_cache=prefix_cache)
        hosts = None if host not in LOCAL and not allow_host else [*LOOPBACK, host, *(allow_host or [])]
        app = make_app(engine, api_key=key, cors=cors or [], hosts=hosts, log_prompts=log_prompts)
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{sock.getsockname()[1]}"

        def ready() -> None:
            served = ", ".join(f"{name} ({how_it_writes(lm)})" for name, lm in lms.items())
            err_console.print(f"serving {served} at {address} (Ctrl-C stops)", markup=False)

        with contextlib.suppress(KeyboardInterrupt):
            run(app, engine, sock, ready)


def how_it_writes(lm: LM) -> str:
    """The method of a model, and how many tokens it writes at a time."""
    method, size = lm.config.model.method, lm.model.block_size
    return f"{method}, {size} token{'s' * (size > 1)} a block" if size else method


def _names(models: list[str]) -> dict[str, str]:
    """Models by the name they are served under: NAME=MODEL, or the last part of the path, which reveals no folder."""
    named: dict[str, str] = {}
    for model in models:
        name, sep, path = model.partition("=")
        if not sep or Path(model).exists():
            name, path = Path(model.rstrip("/")).name if Path(model).exists() else model, model
        if not name:
            raise UserError(f"{model} has no name; give one as NAME={path or 'MODEL'}")
        if name in named:
            raise UserError(f"two models are called {name}; give another name to one of them, as NAME={path}")
        named[name] = path
    return named


def _key(file: str | None) -> str | None:
    """The API key, from a file or the environment; never from the command line, which other users can read."""
    key, where = os.environ.get("UNMASK_API_KEY"), "UNMASK_API_KEY"
    if file is not None:
        try:
            key, where = Path(file).read_text(encoding="utf-8"), file
        except (OSError, UnicodeDecodeError):
            raise UserError(f"cannot read the API key from {file}") from None
    if key is None:
        return None
    key = key.strip()
    if not key:
        raise UserError(f"the API key in {where} is empty; write the key to it")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UserError(
            f"the API key in {where} must consist of printable ASCII characters, since it is sent in a header"
        )
    return key
