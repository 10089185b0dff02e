# The contributor's whole menu: `make help` lists it. Every target works alone on a fresh clone.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
# Test processes side by side, one thread each.
WORKERS ?= 2
BIN := $(VENV)/bin
# Written last, so that an interrupted installation is taken up again.
INSTALLED := $(VENV)/.installed

# Nothing below needs the network once installed: a mistaken hub id fails at once, and nothing phones home.
export HF_HUB_OFFLINE := 1
export HF_HUB_DISABLE_TELEMETRY := 1
export GRADIO_ANALYTICS_ENABLED := False

.DEFAULT_GOAL := help
.PHONY: help install demo app test test-all lint types weights weights-quick results benchmark clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

install: $(INSTALLED) ## create .venv with the pinned versions (every other target does it when needed)

demo: $(INSTALLED) ## one prompt, three encoders, one seed: prints the table, writes demo.png
	@$(BIN)/python -m debias_sd.demo

app: $(INSTALLED) ## the comparison in a browser, on this machine only
	@$(BIN)/python -m app

test test-all: export OMP_NUM_THREADS := 1
# Bytecode is kept: the many short processes of the tests, and the next run, need not compile again.
test test-all: export PYTHONDONTWRITEBYTECODE :=
# Whole files to each worker, in the order of tests/conftest.py: the longest first.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test: $(INSTALLED) ## the default tests: no network, no GPU
	@$(PYTEST)

test-all: $(INSTALLED) ## the slow tests too
	@$(PYTEST) -m ""

lint: $(INSTALLED) ## ruff: rules and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(INSTALLED) ## mypy over the modules that pyproject.toml names
	@$(BIN)/python -m mypy

weights: $(INSTALLED) ## make every shipped weight again from nothing (hours; resumes where it stopped)
	@$(BIN)/python scripts/weights.py

weights-quick: $(INSTALLED) ## the same chain at reduced size, into a scratch folder (minutes)
	@$(BIN)/python scripts/weights.py --quick

results: $(INSTALLED) ## train and measure what docs/results.md compares, then write it (hours; resumes where it stopped)
	@$(BIN)/python scripts/experiments.py
	@$(BIN)/python scripts/experiments.py --other-ways
	@$(BIN)/python scripts/results.py --readme README.md

benchmark: $(INSTALLED) ## speed of prompt encoding, of a picture and of a training step, side by side with others
	@$(BIN)/python benchmarks/encode.py
	@$(BIN)/python benchmarks/prompts.py
	@$(BIN)/python benchmarks/generate.py
	@$(BIN)/python benchmarks/train_step.py
	@$(BIN)/python benchmarks/lengthen.py
	@$(BIN)/python benchmarks/load_data.py
	@$(BIN)/python benchmarks/retrieval.py

clean: ## remove .venv and what the commands leave behind
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache demo.png
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed and none was found; install it (Debian, Ubuntu: apt install python3 python3-venv)." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed and $(PYTHON) is not; name another one: make PYTHON=python3.12." >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "$(PYTHON) has no venv module; install it (Debian, Ubuntu: apt install python3-venv) and call make again." >&2; exit 1; }
	@echo "Installing into $(VENV): about 3 GB to download, 6 GB on disk, one to a few minutes; only this first time."
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --timeout 120 --retries 10 -c constraints.txt -e '.[train,app,browser,dev]'
	@touch $@
