# Everything a newcomer or CI runs. The only needs are Python 3.11 or newer and make.

VENV := .venv
PY := $(VENV)/bin/python
RUNS := $(VENV)/.runs
READY := $(VENV)/.ready
BASE := $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
PYTEST := $(PY) -m pytest
# Unit and integration tests mostly wait, so more of them run than there are cores. Those with real process
# trees keep to a file at a time each, because they share the tree of their file.
WIDE := -n 4
TREES := -n 2 --dist loadfile
# Two cores are shared by many processes, so a deadline may pass for want of a core. What failed (exit code 1) is
# run once more, alone; both results are printed, and what fails again fails.
ALONE := test $$? -eq 1 && echo "once more, alone:" && $(PYTEST) --last-failed --last-failed-no-failures=none

.PHONY: setup system run test lint unit integration coverage e2e soak bench docs site images vendor lock clean

setup: $(READY)

# What running takes, which is what a deployment installs; tests and tools take more.
$(RUNS): requirements.txt
	@$(BASE) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed"; exit 1; }
	@test -x $(PY) || $(BASE) -m venv $(VENV)
	@echo "installing into $(VENV) (once, about a minute)"
	@$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
	@$(PY) -c "import pathlib as p, sysconfig as s; p.Path(s.get_path('purelib'), 'here.pth').write_text('$(CURDIR)')"
	@touch $(RUNS)

$(READY): $(RUNS) requirements-dev.txt setup.cfg pyproject.toml
	@echo "installing what tests need (once)"
	@$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.txt
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(READY)

# What tests need from the system; says what cannot be installed here, whenever tests are run.
system: $(READY)
	@$(PY) tests/system.py

run: $(RUNS)
	@$(PY) -m worker local --prove $(if $(ONCE),--once)

test: lint unit integration coverage e2e

lint: $(READY)
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(VENV)/bin/lint-imports --no-logo --no-cache

unit: $(READY) system
	@COVERAGE_FILE=.coverage-unit $(PYTEST) $(WIDE) --cov --cov-report= tests/unit || { $(ALONE) tests/unit; }

integration: $(READY) system
	@COVERAGE_FILE=.coverage-integration $(PYTEST) $(WIDE) --cov --cov-report= tests/integration || \
	  { $(ALONE) tests/integration; }

# What the last runs of unit and integration tests covered; `.venv/bin/coverage report` lists the files.
coverage: $(READY)
	@$(PY) -m coverage combine --quiet --keep .coverage-unit .coverage-integration >/dev/null
	@echo "unit and integration tests cover $$($(PY) -m coverage report --format=total) % of the statements"

e2e: $(READY) system
	@$(PYTEST) $(TREES) tests/e2e tests/browser || { $(ALONE) tests/e2e tests/browser; }

soak: $(READY) system
	@$(PYTEST) tests -m soak

# Measures for less than 20 minutes on a machine that does nothing else; docs/performance.md is made of the results.
bench: $(READY)
	@$(PY) -m bench --json bench/results.json; status=$$?; $(PY) -m docs; exit $$status

# Writes the pages that are made from code; a test fails where they are out of date.
docs: $(READY)
	@$(PY) -m docs
	@$(PY) -m worker.store.data_model_page docs/data-model.md

# The pages of docs/ as a site with search, for a browser or any static host. Needs no network.
site: $(READY)
	@$(PY) -m docs.site
	@echo "open build/site/index.html, or copy build/site to any static host"

# Takes the pictures of the pages for docs/ and for previews of links; only needed when pages have changed.
images: $(READY) system
	@$(PYTEST) tests/browser/take_images.py

# Brings in the npm files that pages use; needs npm, and only when a version in docs/vendor.py has changed.
vendor: $(READY)
	@$(PY) -m docs.vendor

# Needs uv; the development set is resolved first, so that production runs what was tested.
lock:
	@uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --custom-compile-command "make lock" setup.cfg --extra dev -o requirements-dev.txt
	@uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --custom-compile-command "make lock" setup.cfg -c requirements-dev.txt -o requirements.txt

clean:
	@rm -rf $(VENV) var build *.egg-info .pytest_cache .mypy_cache .ruff_cache .coverage .coverage-*
