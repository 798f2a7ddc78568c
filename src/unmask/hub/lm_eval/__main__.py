"""`python -m unmask.hub.lm_eval ARGS`: the command of the lm-evaluation-harness with `--model unmask` registered."""

import sys

from ...errors import UserError
from .adapter import main

if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        print("unmask:", *str(error).splitlines(), file=sys.stderr)
        sys.exit(2)
