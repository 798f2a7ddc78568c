"""What the documentation of version 0.1 imported still imports, and says what it is called now."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import unmask
from unmask.compat import MODULES

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md"])
DOCUMENTED = """
    from unmask import adapt
    from unmask import build
    from unmask import ctmc
    from unmask.backbones.base import Backbone
    from unmask.bounds import continuous
    from unmask.canvas import Painter
    from unmask.checkpoint import read_json, verify, write_atomically
    from unmask.convert import convert
    from unmask.data.dna.bases import dna_tokenizer
    from unmask.data.dna.store import open_genome
    from unmask.data.tokenizers import bytes_tokenizer
    from unmask.evaluate import baselines, evaluate
    from unmask.finetune import load_classifier
    from unmask.generative import judge_model
    from unmask.genomes.compare import write_report
    from unmask.genomes.embed import Embedder
    from unmask.genomes.strands import conjoined
    from unmask.genomes.variants import Request, score_variants
    from unmask.harness import adapter
    from unmask.hf import MDLM, MDLMCollator, push_to_hub, unpack
    from unmask.judge import judge, open_scorer, table
    from unmask.keys import Keys
    from unmask.masking import corrupt
    from unmask.models.base import LanguageModel
    from unmask.models.simplex import SimplexDiffusion
    from unmask.ops.scan import selective_scan
    from unmask.page import write_html
    from unmask.parameterization import Parameterization
    from unmask.samplers import PLANS, Control, Course, Desk, Plan, Task, plan_named
    from unmask.schedule import Polynomial
    from unmask.scoring import marked
    from unmask.suites import SUITES
    from unmask.tasks import TASKS
    from unmask.terminal import canvas_text
    from unmask.trace import Trace
    from unmask.train import train
    from unmask.writing import Options
""".strip().splitlines()
STILL = """
    from unmask.config import DataConfig
    from unmask.data import prepare, record, train_batch
    from unmask.data.records import ZERO_SHOT
    from unmask.hub import find, load
    from unmask.lm import LM
    from unmask.models.autoregressive import AutoRegressive
    from unmask.models.masked import MaskedDiffusion
    from unmask.reproduce import TABLES, reproduce
    from unmask.types import State
""".strip().splitlines()


def forget() -> None:
    """As in a new process: a module is only run, and warns, once."""
    for old in MODULES:
        sys.modules.pop(f"unmask.{old}", None)
        parent, _, name = f"unmask.{old}".rpartition(".")
        vars(sys.modules.get(parent, unmask)).pop(name, None)


@pytest.mark.parametrize("line", map(str.strip, DOCUMENTED))
def test_an_old_name_still_imports_and_says_its_new_one(line, recwarn):
    forget()
    exec(line, {})
    said = [str(one.message) for one in recwarn if one.category is DeprecationWarning]
    module = line.split()[1]
    if module == "unmask":
        module = f"unmask.{line.split()[-1]}"
    new = MODULES[module.removeprefix("unmask.")].split()[0]
    assert f"{module} is unmask.{new} now; the old name will go with the next release" in said
    forget()


@pytest.mark.parametrize("line", map(str.strip, STILL))
def test_what_kept_its_name_says_nothing(line, recwarn):
    exec(line, {})
    assert not [one for one in recwarn if "next release" in str(one.message)]


def test_every_old_module_is_checked_here():
    checked = " ".join(DOCUMENTED)
    parents = {"backbones", "data.dna", "genomes", "ops"}
    assert all(f"unmask.{old} " in checked or f"import {old}" in checked for old in MODULES.keys() - parents)
    root = Path(unmask.__file__).parent / "compat"
    files = {".".join(file.relative_to(root).with_suffix("").parts) for file in root.rglob("*.py")}
    others = {"__init__", "data", "models", "harness.__main__"}
    assert {name.removesuffix(".__init__") for name in files} - others == set(MODULES)


def test_an_old_name_is_the_thing_itself():
    from unmask.finetune import load_classifier
    from unmask.writing import Options

    from unmask.hub.resolve import load_classifier as now
    from unmask.sampling.params import SamplingParams

    assert load_classifier is now and Options is SamplingParams
    assert unmask.trace.Trace is import_module("unmask.sampling.trace").Trace


def test_what_never_was_is_not_there():
    with pytest.raises(AttributeError, match=r"module 'unmask\.keys' has no attribute 'nonsense'"):
        _ = import_module("unmask.keys").nonsense
    with pytest.raises(AttributeError, match="module 'unmask' has no attribute 'nonsense'"):
        _ = unmask.nonsense
    with pytest.raises(ModuleNotFoundError):
        import_module("unmask.nonsense")


def named_in(page: Path) -> set[str]:
    """What a page imports in its examples, or names in full; not where it speaks of old names."""
    text = page.read_text(encoding="utf-8").partition("## Names of version 0.1")[0]
    names = set(re.findall(r"`(unmask(?:\.\w+)+)", text))
    names |= set(re.findall(r"^import (unmask[\w.]*)", text, re.MULTILINE))
    for module, parts in re.findall(r"from (unmask[\w.]*) import ([\w, ]+)", text):
        names |= {f"{module}.{part.strip()}" for part in parts.split(",")}
    return names


def look_up(name: str) -> object:
    """What a dotted name means: a module, or something in one."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        module, _, last = name.rpartition(".")
        return getattr(look_up(module), last)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.filterwarnings("error:.*the old name will go:DeprecationWarning")
def test_the_documentation_names_what_is_there_and_nothing_old(page):
    forget()
    for name in sorted(named_in(page)):
        look_up(name)


def test_the_warning_points_to_the_line_that_imports(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text("import unmask\n\nfrom unmask.keys import Keys\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert "mine.py:3: DeprecationWarning: unmask.keys is unmask.process.keys now" in done.stderr


def test_the_old_command_of_the_harness(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["unmask.harness", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("unmask.harness", run_name="__main__", alter_sys=True)
    assert not ended.value.code and "usage" in capsys.readouterr().out.lower()
