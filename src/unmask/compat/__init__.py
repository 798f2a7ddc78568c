"""The import names of version 0.1, for one release: each finds what it is called now, with a DeprecationWarning.

`unmask.__path__` ends with this folder (and that of `data` and `models` with the folders of those names here), so
`import unmask.hf` runs hf.py here. Every file here has the same two lines; what it means stands in this one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

MODULES = {  # the old name: where its content is now, the first place first
    "adapt": "training.adapt",
    "backbones": "networks",
    "backbones.base": "networks.interface",
    "bounds": "process.bounds",
    "build": "models.registry",
    "canvas": "data.canvas",
    "checkpoint": "hub.checkpoint files",
    "convert": "hub.convert",
    "ctmc": "process.ctmc",
    "data.dna": "data.genome",
    "data.dna.bases": "data.genome.bases",
    "data.dna.store": "data.genome.store",
    "data.tokenizers": "data.tokenization",
    "evaluate": "evaluation.likelihood",
    "finetune": "training.finetune hub.resolve",
    "generative": "evaluation.generative",
    "genomes": "dna",
    "genomes.compare": "dna.compare",
    "genomes.embed": "dna.embed",
    "genomes.strands": "dna.strands",
    "genomes.variants": "dna.variants",
    "harness": "hub.lm_eval",
    "hf": "hub.transformers",
    "judge": "evaluation.judge",
    "keys": "process.keys",
    "masking": "process.masking",
    "models.base": "models.language_model",
    "models.simplex": "models.ssd_lm",
    "ops": "networks.kernels",
    "ops.scan": "networks.kernels.scan",
    "page": "serve.replay",
    "parameterization": "process.parameterization",
    "samplers": "sampling",
    "schedule": "process.schedule",
    "scoring": "evaluation",
    "suites": "evaluation.suites",
    "tasks": "data.tasks",
    "terminal": "cli.terminal",
    "trace": "sampling.trace",
    "train": "training.text",
    "writing": "sampling.params",
}
NAMES = {  # of what is in them: the old name, and what it is called now
    "Asking": "GenerationRequests",
    "Backbone": "Network",
    "Control": "Rules",
    "Course": "Trajectory Recording",
    "Desk": "Batcher",
    "Event": "TraceEvent",
    "Look": "Prediction",
    "NotHere": "MissingTaskData",
    "Options": "SamplingParams",
    "PLANS": "SAMPLERS",
    "Painter": "PromptBuilder",
    "Plan": "Sampler",
    "Queue": "Batcher",
    "Reading": "LikelihoodRequests",
    "Request": "VariantRequest",
    "Result": "TrainResult SuiteResult",
    "Scored": "JudgedText ScoredPassage",
    "Task": "Request Sequence",
    "Timetable": "PlannedTrajectory",
    "fill": "load_weights",
    "go_on": "continue_training",
    "plan_named": "make_sampler",
    "temporary_name": "temporary_folder",
    "usual_method": "default_method",
    "write_atomically": "write_text",
    "writing": "sealed_folder",
}


def moved(old: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module that has another name now."""
    places = [f"unmask.{place}" for place in MODULES[old.removeprefix("unmask.")].split()]
    message = f"{old} is {places[0]} now; the old name will go with the next release"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    modules = [import_module(place) for place in places]

    def find(name: str) -> Any:
        for module in modules:
            for known in (name, *NAMES.get(name, "").split()):
                if hasattr(module, known):
                    return getattr(module, known)
        raise AttributeError(f"module {old!r} has no attribute {name!r}")

    return find
