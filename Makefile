# make test | lint | demo: each builds .venv first, from pyproject.toml with the pins of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST_ARGS ?=

.PHONY: install test lint format demo clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

test: $(STAMP)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: $(STAMP)
	rm -rf demo
	$(BIN)/python -m synthetic_attention.tasks.toy demo/corpus
	$(BIN)/synthesizer train translation --data demo/corpus --source en --target de --synthesizer random+vanilla \
		--preset tiny --steps 100 --set warmup_steps=20 --set vocab_size=400 --output demo/run
	$(BIN)/synthesizer evaluate demo/run --split test
	$(BIN)/synthesizer generate demo/run "twenty one plus three"

clean:
	rm -rf $(VENV) demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
