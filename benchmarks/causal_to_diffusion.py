"""What `unmask finetune CAUSAL mdlm|block` came to: the bound against processor seconds, and texts before and after.

python benchmarks/causal_to_diffusion.py REPORT NAME=RUN [NAME=RUN ...]

Each RUN is the folder of a run, finished or not. The first one is looked at more closely: its exact likelihood in
blocks of one token, if it is a block model, which is the autoregressive law before the training, and the same prompts
continued before and after. REPORT gets curves.json and bound.svg.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import unmask
from unmask.config import Config, load_yaml
from unmask.distributed import world as join_world
from unmask.plot import Curve, Plot, svg
from unmask.training import adapt

PROMPTS = ["Once upon a time", "One day, a little girl named Lily", "Tom had a red ball."]


def curve(run: Path) -> list[dict[str, float]]:
    """The bound at each evaluation, with the steps and the processor seconds of learning until then."""
    before = json.loads((run / "before.json").read_text())
    points = [{"step": 0, "seconds": 0.0, "nats_per_token": before["nats_per_token"]}]
    seconds = 0.0
    for line in (run / "log.jsonl").read_text().splitlines():
        entry = json.loads(line)
        seconds = entry.get("step_seconds", seconds)
        if "valid_nats" in entry:
            points.append({"step": entry["step"], "seconds": seconds, "nats_per_token": entry["valid_nats"]})
    return points


def exact_nats(lm: unmask.LM, config: Config) -> dict[str, Any]:
    """The likelihood in blocks of one token, on the rows of the evaluations of a run."""
    with join_world("cpu") as world:
        return adapt.bound(lm, config.changed(block={"size": 1}), world, quiet=True).as_dict()


def texts(lm: unmask.LM, length: int) -> list[str]:
    """The prompts with what the model writes after them, one token a call."""
    how = {"length": length, "sampler": "confidence", "k": 1, "temperature": 0.7, "seed": 0}
    return [lm.sample(1, prompt=prompt, **how)[0] for prompt in PROMPTS]


def bound_plot(curves: dict[str, list[dict[str, float]]]) -> Plot:
    """The bound of each run against the seconds."""
    return Plot(
        "bound",
        "A causal model becomes a diffusion model",
        "processor seconds of learning",
        "nats per token (bound)",
        [
            Curve(name, [point["seconds"] for point in points], [point["nats_per_token"] for point in points])
            for name, points in curves.items()
        ],
    )


def main() -> None:
    """Read the runs, look at the first one, write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN")
    parser.add_argument("--length", type=int, default=48, help="tokens of a text")
    given = parser.parse_args()
    runs = {name: Path(path) for name, _, path in (text.partition("=") for text in given.runs)}
    curves = {name: curve(run) for name, run in runs.items()}
    first = next(iter(runs.values()))
    config = load_yaml(first / "config.yaml")
    models = {"before": adapt.turned(adapt.load_start(str(config.train.start)), config), "after": unmask.load(first)}
    looked: dict[str, Any] = {}
    for name, lm in models.items():
        exact = exact_nats(lm, config)["nats_per_token"] if config.model.method == "block" else None
        looked[name] = {"nats_per_token_blocks_of_1": exact, "texts": texts(lm, given.length)}
        print(name, exact, *looked[name]["texts"], sep="\n", flush=True)
    given.report.mkdir(parents=True, exist_ok=True)
    results = {"curves": curves, "first_run": looked, "settings": config.model_dump(mode="json")}
    (given.report / "curves.json").write_text(json.dumps(results, indent=1) + "\n")
    (given.report / "bound.svg").write_text(svg(bound_plot(curves)))


if __name__ == "__main__":
    main()
