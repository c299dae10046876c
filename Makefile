# make train    set up .venv, then one run; ARGS="objective=grpo seed=1" changes it
# make test     set up .venv, then lint, types and the whole CPU suite
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?= domain=llm task=countdown

.PHONY: train test lint types clean

train: $(VENV)/.ready
	$(BIN)/python train.py $(ARGS)

test: $(VENV)/.ready-dev lint types
	$(BIN)/python -m pytest

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.ready-dev
	$(BIN)/mypy

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install -c constraints.txt -e .
	touch $@

$(VENV)/.ready-dev: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install -c constraints.txt -e ".[dev]"
	touch $@ $(VENV)/.ready

clean:
	rm -rf $(VENV) build dist *.egg-info src/*.egg-info
