# Two commands on a fresh machine with Python 3.11 or newer: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-all browser lint bench clean

demo: $(STAMP)
	$(BIN)/unmask demo --out runs/demo

# every test runs on one thread, so a core takes a file of them
WORKERS := -n auto --maxprocesses 4 --dist loadfile

test: $(STAMP) browser
	$(BIN)/python -m pytest $(WORKERS) -m "not slow"

test-all: $(STAMP) browser
	$(BIN)/python -m pytest $(WORKERS)

# The live page is tested in a real browser where one can be had; without one these tests are skipped, with a reason.
CHROMIUM := command -v chromium || command -v chromium-browser || command -v google-chrome
browser: $(STAMP)
	@$(BIN)/python -c 'import playwright' 2> /dev/null || \
		$(BIN)/pip install --quiet --constraint constraints.txt playwright || echo "no playwright: the page is not opened"
	@{ $(CHROMIUM); } > /dev/null || { test "$$(id -u)" = 0 && command -v apt-get && apt-get update && \
		timeout 600 apt-get install --yes --no-install-recommends chromium; } > /dev/null 2>&1 || \
		echo "no chromium (as root: apt-get install chromium): the page is not opened"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python benchmarks/train_step.py
	$(BIN)/python benchmarks/sampling.py --batch 1
	$(BIN)/python benchmarks/bert.py
	$(BIN)/python benchmarks/scan.py
	$(BIN)/python benchmarks/serve.py

# torch goes first and alone: with the constraint pip takes the pinned build, and nothing later replaces it.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "unmask needs Python 3.11 or newer; run: make PYTHON=python3.12 demo"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info
