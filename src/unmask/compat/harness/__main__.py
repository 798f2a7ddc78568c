"""`python -m unmask.harness` is `python -m unmask.hub.lm_eval` now."""

import runpy

if __name__ == "__main__":
    runpy.run_module("unmask.hub.lm_eval", run_name="__main__")
