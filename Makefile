# Two commands do all the set-up on a machine with Python 3.11 and git:
#   make demo    the main job, end to end, on a real model
#   make test    every test
# Each makes its own virtual environment (.venv) from the hashed lock files.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
PORT ?= 8000
HOST ?= 127.0.0.1
PYTEST_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help venv models demo serve test lint fmt openapi lock clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: requirements/runtime.txt pyproject.toml | $(BIN)/python
	$(PIP) install --quiet --require-hashes -r requirements/runtime.txt
	$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.runtime
	$(PIP) install --quiet --require-hashes -r requirements/dev.txt
	@touch $@

venv: $(VENV)/.dev  ## make .venv with everything that tests and lint need

models: $(VENV)/.dev  ## fetch the real trained models that tests and the demo use
	$(BIN)/python -m tests.support.fetch_models

demo: models  ## compile a real model over HTTP on an embedded server and check the result
	$(BIN)/python examples/demo.py

serve: $(VENV)/.runtime  ## run the embedded server on $(HOST):$(PORT) until Ctrl-C
	$(BIN)/qbserver serve --host $(HOST) --port $(PORT)

test: models  ## run every test
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.dev  ## ruff, mypy strict, import rules, the OpenAPI diff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m service.api.openapi --check

fmt: $(VENV)/.dev  ## format and mend what ruff can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

openapi: $(VENV)/.dev  ## write openapi/openapi.json from the application
	$(BIN)/python -m service.api.openapi --write

lock: $(VENV)/.dev  ## pin the newest allowed versions again (needs uv)
	$(BIN)/python requirements/lock.py

clean:  ## remove the virtual environment, the models and the demo's data
	rm -rf $(VENV) models var build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
