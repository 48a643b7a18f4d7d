# Everything a newcomer or CI runs. The only needs are Python 3.11 or newer and make.

VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
BASE := $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
PYTEST := $(PY) -m pytest
# Unit and integration tests mostly wait, so more of them run than there are cores. Those with real process
# trees keep to a file at a time each, because they share the tree of their file.
WIDE := -n 4
TREES := -n 2 --dist loadfile

.PHONY: setup run test lint unit integration e2e soak bench lock clean

setup: $(READY)

$(READY): requirements-dev.txt setup.cfg pyproject.toml
	@$(BASE) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed"; exit 1; }
	@test -x $(PY) || $(BASE) -m venv $(VENV)
	@echo "installing into $(VENV) (once)"
	@$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.txt
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(READY)

run: $(READY)
	@$(PY) -m worker local --prove $(if $(ONCE),--once)

test: lint unit integration e2e

lint: $(READY)
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

unit integration: $(READY)
	@$(PYTEST) $(WIDE) tests/$@

e2e: $(READY)
	@$(PYTEST) $(TREES) tests/e2e

soak: $(READY)
	@$(PYTEST) tests -m soak

bench: $(READY)
	@$(PY) -m bench

# Needs uv; the development set is resolved first, so that production runs what was tested.
lock:
	@uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --custom-compile-command "make lock" setup.cfg --extra local --extra s3 --extra dev -o requirements-dev.txt
	@uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --custom-compile-command "make lock" setup.cfg -c requirements-dev.txt -o requirements.txt

clean:
	@rm -rf $(VENV) var build *.egg-info .pytest_cache .mypy_cache .ruff_cache
