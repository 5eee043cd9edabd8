# make test | test-slow | test-cuda | fuzz [SEED=N] | lint | docs | notebooks | demo | results DATA=FOLDER [ONLY="NAME …"] | tables [RUNS=FOLDER]: each but test-cuda builds .venv first, from pyproject.toml with the pins of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e
PYTEST_ARGS ?=
# Processes of the tests, each with one thread; 0 runs the tests in one process with two, for a debugger.
WORKERS ?= 2
SEED ?= 0

# Before anything is installed.
ifneq ($(filter results,$(MAKECMDGOALS)),)
ifeq ($(DATA),)
$(error got no DATA; expected DATA=FOLDER, the folder with the data sets, as docs/results.md has them)
endif
endif

.PHONY: install test test-slow test-cuda fuzz lint format docs notebooks demo results tables clean

install: $(STAMP)

# In two steps: the demo needs the first only, and compiles what it imports.
$(VENV)/.train: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[train]'
	touch $@

$(STAMP): $(VENV)/.train
	$(INSTALL) '.[dev]'
	-$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib
	touch $@

test: $(STAMP)
	$(BIN)/python -m pytest -m "not slow" -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

# On a machine with a GPU, with the packages of $(PYTHON): the pinned torch may be one for CPUs.
test-cuda: export PYTHONPATH := $(CURDIR)/src
test-cuda:
	$(PYTHON) -m pytest -m cuda $(PYTEST_ARGS)
	$(PYTHON) -m synthesizer_lab benchmark attention --device cuda --dtype bfloat16 --width 1024 --heads 16 \
		--tokens 65536 --lengths 512,1024,2048,4096 --masks full,causal --repeats 15 --json test-cuda.json

# `make test` and `make test-slow` have a small part of it.
fuzz: $(STAMP)
	FUZZ=long $(BIN)/python -m pytest tests/fuzz --hypothesis-seed=$(SEED) $(PYTEST_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site, in site/. Warnings, among them links to nothing, are errors; nothing is downloaded.
# (With --quiet, --strict sees no warnings.)
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The outputs of the notebooks, docs/notebooks/*.ipynb.
notebooks: $(STAMP)
	WRITE=1 $(BIN)/python -m pytest tests/test_notebooks.py -m slow $(PYTEST_ARGS)

demo: $(VENV)/.train
	$(BIN)/python benchmarks/demo.py demo

results: $(STAMP)
	$(BIN)/python -m synthesizer_lab.compare.experiments --data "$(DATA)" --output runs $(ONLY)

# The tables and verdicts of README.md, docs/results.md and docs/claims.md, from the results in RUNS.
tables: $(STAMP)
	$(BIN)/python -m synthesizer_lab.compare.documents $(if $(RUNS),--runs "$(RUNS)")

clean:
	rm -rf $(VENV) demo site .pytest_cache .mypy_cache .ruff_cache .hypothesis
