"""`unmask marginals`: what a model says of every open position of a text, before anything is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .shared import Device, Json, Model, Quantize, TokenizerOf, Weights, Which, load_lm, print_json, print_lines

if TYPE_CHECKING:
    from ..evaluation import Marginals


def marginals(
    model: Model,
    texts: Annotated[list[str], typer.Argument(help="Texts with gaps: {{3}} is one of 3 tokens, {{2-6}} of 2 to 6.")],
    top: Annotated[int, typer.Option(help="Tokens to show for every position, the likeliest first.")] = 5,
    label: Annotated[str | None, typer.Option(help="Label of a model that was trained with labels.")] = None,
    batch_size: Annotated[int, typer.Option(help="Texts per network call; does not change the result.")] = 16,
    tokenizer: TokenizerOf = None,
    quantize: Quantize = None,
    which: Which = "last",
    weights: Weights = "ema",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Show the model's distribution at every open position of texts, from one network call; nothing is written."""
    lm = load_lm(model, which, weights, device, tokenizer, quantize=quantize)
    each = lm.marginals(texts, top=top, label=label, batch_size=batch_size)
    if as_json:
        print_json(
            {"model": model, "texts": [{"text": text, **one.as_dict()} for text, one in zip(texts, each, strict=True)]}
        )
        return
    for i, one in enumerate(each):
        heading = [texts[i]] if len(texts) > 1 else []
        print_lines([*([""] if i else []), *heading, *_lines(one)])


def _lines(one: Marginals) -> list[str]:
    """A line for every open position: its entropy in nats, and its tokens with their probabilities."""
    from ..text_tables import terminal_table

    rows = [
        [
            str(place.position),
            f"{place.entropy:.3f}",
            *(f"{piece!r} {prob:.3g}" for piece, prob in zip(place.pieces, place.probs, strict=True)),
        ]
        for place in one.positions
    ]
    blank = [""] * (len(rows[0]) - 3)
    return terminal_table([["position", "entropy", "tokens", *blank], *rows], words=range(2, len(rows[0])))
