# On a fresh machine with Python 3.11 or newer: `make demo` to see it, `make check` or `make test` to work on it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
DEV := $(VENV)/.dev
DOCS := $(VENV)/.docs
INSTALL := $(BIN)/pip install --quiet --constraint constraints.txt

.PHONY: demo check test test-all browser lint docs figures bench soak clean

demo: $(RUNTIME)
	$(BIN)/unmask demo --out runs/demo

# Every test runs on one thread, so a core takes its share of them, and a worker that is done takes over from another.
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

# The contributor's loop: the mathematics, the networks, the samplers, the models.
check: $(DEV)
	$(PYTEST) -m "not slow" tests/process tests/networks tests/sampling tests/models

test: $(DEV) browser
	$(PYTEST) -m "not slow"

test-all: $(DEV) browser
	$(PYTEST)

# The live page is tested in a real browser where one can be had; without one these tests are skipped, with a reason.
CHROMIUM := command -v chromium || command -v chromium-browser || command -v google-chrome
browser: $(DEV)
	@$(BIN)/python -c 'import playwright, axe_playwright_python, PIL' 2> /dev/null || $(INSTALL) --editable '.[browser]' || \
		echo "no playwright: the page is not opened"
	@{ $(CHROMIUM); } > /dev/null || { test "$$(id -u)" = 0 && command -v apt-get && apt-get update && \
		timeout 600 apt-get install --yes --no-install-recommends chromium; } > /dev/null 2>&1 || \
		echo "no chromium (as root: apt-get install chromium): the page is not opened"

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site, with an API reference from the docstrings, into site/. Nothing of it is loaded from elsewhere.
docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "built: open site/index.html"

# Names, lines, repetitions and seconds of this tree; `make figures TREE=elsewhere` for another one.
TREE := .
figures: $(RUNTIME)
	$(BIN)/python tools/figures.py $(TREE)

bench: $(DEV)
	$(BIN)/python benchmarks/train_step.py
	$(BIN)/python benchmarks/sampling.py --batch 1
	$(BIN)/python benchmarks/bert.py
	$(BIN)/python benchmarks/scan.py
	$(BIN)/python benchmarks/serve.py

# Faults on purpose (kills, full disks, flipped bits, lost processes, floods, traps), counted in docs/reliability.md:
# an hour at most, five minutes with QUICK=1. As root it can mount a small file system and make network namespaces.
soak: $(DEV)
	@command -v ip > /dev/null || { test "$$(id -u)" = 0 && command -v apt-get && apt-get update && \
		timeout 600 apt-get install --yes --no-install-recommends iproute2; } > /dev/null 2>&1 || \
		echo "no iproute2: two nodes run on one host"
	$(BIN)/python tools/soak $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY))

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "unmask needs Python 3.11 or newer; run: make PYTHON=python3.12 demo"; exit 2; }
	$(PYTHON) -m venv $(VENV)

# What each target needs is installed once. torch goes first and alone: with the constraint pip takes the pinned build,
# and nothing later replaces it.
$(RUNTIME): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) torch
	$(INSTALL) --editable .
	touch $@

$(DEV): $(RUNTIME)
	$(INSTALL) --editable '.[dev]'
	touch $@

$(DOCS): $(RUNTIME)
	$(INSTALL) --editable '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) build dist site src/*.egg-info
