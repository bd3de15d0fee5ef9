# `make demo` and `make test` set everything up themselves: a virtual environment in .venv, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
WORKERS ?= 2

.PHONY: help setup demo test check format prove bench clean

help:                ## what there is to do
	@grep -hE '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1|/' | while IFS='|' read -r name what; do printf '  make %-8s %s\n' "$$name" "$$what"; done

setup: $(VENV)/ready ## make .venv with the package and what its tests need

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Proa needs Python 3.11 or newer; this is " + sys.version.split()[0] + " (make PYTHON=python3.12 ...)")'
	@echo "setting up $(VENV) (torch is about 200 MB) ..."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP_INSTALL) --upgrade pip
	$(BIN)/python $(PIP_INSTALL) --editable '.[dev]'
	@touch $@

demo: setup          ## a small model learns to sort digits by detached RL, in two to three minutes
	rm -rf runs/demo
	$(BIN)/proa train examples/sort_digits.yaml --output_dir runs/demo

test: setup          ## the tests, in two processes (WORKERS=n for more)
	$(BIN)/python -m pytest -q --numprocesses $(WORKERS) --no-loadscope-reorder

check: setup         ## format, lint, types, direction of imports
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/mypy --strict examples
	$(BIN)/lint-imports

format: setup        ## format and sort imports
	$(BIN)/ruff format --quiet .
	$(BIN)/ruff check --quiet --fix .

prove: setup         ## the long proofs, the demo and the benchmark bounds
	$(BIN)/python -m pytest -q -m prove
	$(BIN)/python -m pytest -q
	$(BIN)/python examples/lifecycle_demo.py
	$(BIN)/python benchmarks/callbacks.py
	$(BIN)/python benchmarks/rollout.py
	$(BIN)/python benchmarks/weights.py
	$(BIN)/python benchmarks/checkpoint.py
	$(BIN)/python benchmarks/record.py
	$(BIN)/python benchmarks/pipeline.py

bench:               ## the cost of callbacks beside other libraries, in an environment of their own
	benchmarks/set_up_peers .venv-bench
	.venv-bench/bin/python benchmarks/callbacks.py

clean:               ## remove what make made
	rm -rf $(VENV) .venv-bench runs build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
