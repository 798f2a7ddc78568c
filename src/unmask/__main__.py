"""`unmask` and `python -m unmask`, also for torchrun: Ctrl-C ends it without a traceback, even while it is imported."""

from __future__ import annotations

import os


def main() -> None:
    """Run the command line."""
    try:
        from .cli import main as run

        run()
    except KeyboardInterrupt:
        os._exit(130)  # at once: half-imported packages may not be able to clean up


if __name__ == "__main__":
    main()
