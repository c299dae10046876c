# make train    set up .venv, then one run; ARGS="objective=grpo seed=1" changes it
# make test     set up .venv, then lint, types and the whole CPU suite, in JOBS=2 processes
# make notebooks  the notebooks at their full settings, as pages with figures in runs/notebooks
# make test-vllm  set up .venv-vllm with vLLM's CPU build (Linux x86-64), then the tests that need vLLM
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
VLLM_VENV ?= .venv-vllm
VLLM_BIN := $(VLLM_VENV)/bin
ARGS ?= domain=llm task=countdown
JOBS ?= 2

.PHONY: train test test-vllm notebooks lint types clean

train: $(VENV)/.ready
	$(BIN)/python train.py $(ARGS)

test: $(VENV)/.ready-dev lint types
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

test-vllm: $(VLLM_VENV)/.ready
	OMP_NUM_THREADS=1 $(VLLM_BIN)/python -m pytest tests/vllm

notebooks: $(VENV)/.ready-dev
	$(BIN)/jupyter nbconvert --execute --to html --output-dir runs/notebooks notebooks/*.ipynb

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

$(VLLM_VENV)/.ready: tests/vllm/requirements.txt pyproject.toml
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_BIN)/python -m pip install -c tests/vllm/requirements.txt torch
	$(VLLM_BIN)/python -m pip install --no-deps -r tests/vllm/requirements.txt
	$(VLLM_BIN)/python -m pip install --no-deps -e .
	touch $@

clean:
	rm -rf $(VENV) $(VLLM_VENV) build dist *.egg-info src/*.egg-info
