"""`unmask lm-eval`: the evaluation harness with our models registered."""

from __future__ import annotations

import typer


def lm_eval(context: typer.Context) -> None:
    """Run the lm-evaluation-harness with --model unmask registered."""
    from ..hub.lm_eval import main as run

    run(context.args)
