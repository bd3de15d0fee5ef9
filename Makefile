# `make demo` and `make test` set everything up themselves: a virtual environment in .venv, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
WORKERS ?= 2

.PHONY: help setup demo test check format prove vllm pins bench clean

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

prove: setup         ## the long proofs, in parts (PARTS="kills ray"; all of them if none is named), with one summary
	$(BIN)/python tests/prove.py $(PARTS)

vllm:                ## vLLM as an engine, tested in an environment of its own
	tests/vllm/set_up .venv-vllm
	OMP_NUM_THREADS=1 .venv-vllm/bin/python -m pytest -q tests/vllm

pins: setup          ## take the newest version of every package but torch into constraints.txt
	rm -rf .venv-pins && $(PYTHON) -m venv .venv-pins
	grep '^torch==' constraints.txt > .venv-pins/torch.txt
	.venv-pins/bin/python -m pip install --quiet --upgrade pip
	.venv-pins/bin/python -m pip install --quiet --constraint .venv-pins/torch.txt --editable '.[dev]'
	grep '^#' constraints.txt > .venv-pins/constraints.txt
	.venv-pins/bin/python -m pip list --format=freeze --exclude-editable | sed 's/+cpu$$//' >> .venv-pins/constraints.txt
	mv .venv-pins/constraints.txt constraints.txt && rm -rf .venv-pins

bench:               ## the cost of callbacks beside other libraries, in an environment of their own
	benchmarks/set_up_peers .venv-bench
	.venv-bench/bin/python benchmarks/callbacks.py

clean:               ## remove what make made
	rm -rf $(VENV) .venv-* runs build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
