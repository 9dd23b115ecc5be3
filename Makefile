# Two commands do all the set-up on a machine with Python 3.11 and git:
#   make demo    the main job, end to end, on a real model
#   make test    every test
# Each makes a virtual environment of its own (.venv) from the hashed lock files in requirements/.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
HOST ?= 127.0.0.1
PORT ?= 8000
PYTEST_ARGS ?=
LOCK_ARGS ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

.DEFAULT_GOAL := help
.PHONY: help venv models demo serve test lint fmt openapi docs lock audit sbom clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 to 3.13 is needed, this is " + sys.version.split()[0] + "; name another with PYTHON=" if not (3, 11) <= sys.version_info < (3, 14) else 0)'
	$(PYTHON) -m venv $(VENV)

# The package itself is installed in place, so only a change of what it needs or offers matters.
$(VENV)/.runtime: requirements/runtime.txt pyproject.toml | $(BIN)/python
	$(PIP) install --quiet --require-hashes -r requirements/runtime.txt
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.runtime
	$(PIP) install --quiet --require-hashes -r requirements/dev.txt
	@touch $@

venv: $(VENV)/.dev  ## make .venv with everything that tests and lint need

models: $(VENV)/.dev  ## fetch the real trained models that tests and the demo use
	$(BIN)/python -m tests.support.fetch_models

demo: models  ## compile a real model over HTTP on an embedded server and check the result
	$(BIN)/python examples/demo.py

serve: $(VENV)/.runtime  ## run the embedded server on HOST:PORT (127.0.0.1:8000) until Ctrl-C
	$(BIN)/qbserver serve --host $(HOST) --port $(PORT)

test: models  ## run every test (PYTEST_ARGS="tests/compiler -x" for some)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.dev  ## ruff, mypy strict, import rules, the OpenAPI and docs diff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=compiler:examples:. $(BIN)/mypy --strict examples/*.py examples/python/*.py requirements/*.py docs/*.py
	$(BIN)/lint-imports
	$(BIN)/python -m service.api.openapi --check
	$(BIN)/python docs/generate.py --check

fmt: $(VENV)/.dev  ## format and mend what ruff can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

openapi: $(VENV)/.dev  ## write openapi/openapi.json from the application
	$(BIN)/python -m service.api.openapi --write

docs: $(VENV)/.dev  ## write the parts of docs/ that come from the code
	$(BIN)/python docs/generate.py

lock: $(VENV)/.dev  ## pin again (needs uv; LOCK_ARGS=--upgrade takes the newest versions)
	$(BIN)/python requirements/lock.py $(LOCK_ARGS)

audit: $(VENV)/.dev  ## look locked packages up in the list of known vulnerabilities (needs PyPI)
	$(BIN)/python -m pip_audit --disable-pip --require-hashes -r requirements/runtime.txt
	$(BIN)/python -m pip_audit --disable-pip --require-hashes -r requirements/dev.txt

sbom: $(VENV)/.runtime  ## write build/sbom.json (CycloneDX) of the image, and print licences
	$(BIN)/python requirements/sbom.py build/sbom.json

clean:  ## remove what was made here, but not the data of `make serve` in var/
	rm -rf $(VENV) models build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
