"""`unmask choose`: how probable each of several texts is in a gap."""

from __future__ import annotations

from typing import Annotated

import typer

from .shared import Device, Json, Model, TokenizerOf, Weights, Which, load_lm, print_json, print_lines


def choose(
    model: Model,
    text: Annotated[str, typer.Argument(help="A text with one gap, {{}}; without one the choices stand at its end.")],
    choices: Annotated[list[str], typer.Option("--choices", help="A text for the gap; give it once for each.")],
    label: Annotated[str | None, typer.Option(help="Label of a model that was trained with labels.")] = None,
    seed: Annotated[int, typer.Option(help="For choices of many tokens, which are scored by draws.")] = 0,
    batch_size: Annotated[int, typer.Option(help="Rows of a network call; does not change the result.")] = 32,
    tokenizer: TokenizerOf = None,
    which: Which = "last",
    weights: Weights = "ema",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Show how probable each choice is in the gap of a text, the likeliest first; nothing is written."""
    from ..text_tables import terminal_table

    lm = load_lm(model, which, weights, device, tokenizer)
    answers = lm.choose(text, choices, label=label, seed=seed, batch_size=batch_size)
    if as_json:
        print_json({"model": model, "text": text, "choices": [answer.as_dict() for answer in answers]})
        return
    exact = all(answer.error == 0 for answer in answers)
    best = sorted(answers, key=lambda answer: -answer.probability)
    rows = [
        [answer.text, f"{answer.probability:.4f}", *([] if exact else [f"± {answer.error:.4f}"]), f"{answer.nats:.3f}"]
        for answer in best
    ]
    print_lines(terminal_table([["choice", "probability", *([] if exact else ["error"]), "nats"], *rows], words=[0]))
