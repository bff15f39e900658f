# Everything here makes its own virtual environment first; `make demo` and the lab tests need root.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin

.PHONY: demo test test-unit test-lab test-real lint install

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || (apt-get update -qq && apt-get install -y -qq python3-venv)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: install
	$(BIN)/fleetctl lab demo

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test-unit: install
	$(BIN)/pytest -q tests/unit

test-lab: install
	$(BIN)/pytest -q tests/lab

test: lint install
	$(BIN)/pytest -q tests/unit tests/lab

test-real: install
	$(BIN)/pytest -q tests/real
