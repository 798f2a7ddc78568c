# Two commands on a fresh machine with Python 3.11 or newer: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-all lint bench clean

demo: $(STAMP)
	$(BIN)/unmask demo --out runs/demo

# every test runs on one thread, so a core takes a file of them
WORKERS := -n auto --maxprocesses 4 --dist loadfile

test: $(STAMP)
	$(BIN)/python -m pytest $(WORKERS) -m "not slow"

test-all: $(STAMP)
	$(BIN)/python -m pytest $(WORKERS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python benchmarks/train_step.py
	$(BIN)/python benchmarks/sampling.py --batch 1
	$(BIN)/python benchmarks/bert.py
	$(BIN)/python benchmarks/scan.py

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
