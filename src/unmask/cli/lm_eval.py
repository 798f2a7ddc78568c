"""`unmask lm-eval`: the evaluation harness, which knows our models then."""

from __future__ import annotations

import typer


def lm_eval(context: typer.Context) -> None:
    """Run the lm-evaluation-harness, which then knows --model unmask."""
    from ..hub.lm_eval import main as run

    run(context.args)
