# Everything runs in .venv. What the program needs is installed first; each extra by the first target that uses it, and
# again whenever pyproject.toml changes.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PROGRAM := $(VENV)/.program
DEV := $(VENV)/.dev
RAY := $(VENV)/.ray
DOCS := $(VENV)/.docs
RELEASE := $(VENV)/.release
BUSY := $(BIN)/python -m tests.support.busy 8

.PHONY: venv demo unit test check long slurm-trixie slurm-sid fuzz fmt lint house bench docs dist single-file release clean

venv: $(DEV)

# Debian's python3 has no ensurepip until python3-venv is installed; virtualenv brings its own pip.
$(PROGRAM): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "hpcdash needs Python 3.11 or later; this is $$($(PYTHON) --version). Say which: make PYTHON=python3.12"; exit 1; }
	@if [ -x $(BIN)/python ] && $(BIN)/python -m pip --version >/dev/null 2>&1; then :; \
	elif $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then $(PYTHON) -m venv $(VENV); \
	elif $(PYTHON) -m virtualenv --version >/dev/null 2>&1; then $(PYTHON) -m virtualenv -q $(VENV); \
	elif command -v virtualenv >/dev/null; then virtualenv -q -p $(PYTHON) $(VENV); \
	elif $(PYTHON) -m pip --version >/dev/null 2>&1 && $(PYTHON) -m pip install -q --user virtualenv; then \
	  $(PYTHON) -m virtualenv -q $(VENV); \
	else \
	  echo "This Python can make no virtual environment: the module venv, or its part ensurepip, is missing."; \
	  echo "Install one of them, then run make again:"; \
	  echo "    apt-get install python3-venv        (Debian, Ubuntu; as root)"; \
	  echo "    apt-get install virtualenv          (the same, without pip in the system's Python)"; \
	  exit 1; \
	fi
	$(BIN)/python -m pip install --disable-pip-version-check -e .
	@touch $@

$(DEV) $(RAY) $(DOCS) $(RELEASE): $(VENV)/.%: $(PROGRAM)
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[$*]'
	@touch $@

demo: $(PROGRAM)
	$(BIN)/hpcdash demo

# What pytest has read of the tests it keeps as bytecode: to read them anew takes five seconds of every run and worker.
unit test check long slurm-trixie slurm-sid: export PYTHONDONTWRITEBYTECODE :=

unit: $(DEV)
	$(BIN)/python -m pytest -n 2 --unit

# Tests start the program hundreds of times: it is compiled once, whatever PYTHONDONTWRITEBYTECODE says.
test: $(DEV) $(RAY)
	@$(BIN)/python -m tests.support.slurm check || echo "so those tests are skipped"
	@$(BIN)/python -m compileall -q hpcdash
	$(BIN)/python -m pytest -n 4 --journeys

check: $(DEV) $(RAY) $(DOCS) $(RELEASE)
	@$(BIN)/python -m tests.support.slurm check || echo "so those tests are skipped; with CI set they fail"
	@$(BIN)/python -m compileall -q hpcdash
	$(BIN)/python -m pytest -n 4

# Property tests with many examples; what is marked long: fuzzed answers, kill series, soaks; `make test` under load;
# the tests of Slurm itself on the releases that Debian 13 (24.11) and sid have.
long: $(DEV) $(RAY)
	$(BIN)/python -m pytest -n 2 -m "hypothesis and not slurm" --hypothesis-profile long --timeout 1200 -o hard_timeout=1500
	$(BIN)/python -m pytest -n 2 -m long --timeout 1200 -o hard_timeout=1500
	$(BUSY) $(BIN)/python -m pytest -n 4 --journeys tests/ui
	$(BUSY) $(BIN)/python -m pytest -n 4 --journeys --ignore tests/ui
	$(MAKE) slurm-trixie slurm-sid fuzz

# A Debian of another release in a folder, for its Slurm: 600 MB. Without it its tests are skipped, and say why.
$(VENV)/slurm-%: | $(DEV)
	-$(BIN)/python -m tests.support.slurm install $* $@

slurm-trixie slurm-sid: slurm-%: $(VENV)/slurm-%
	HPCDASH_SLURM_ROOT=$< $(BIN)/python -m pytest -n 2 -m "slurm_releases and not long"

SEED ?= 1
COUNT ?= 200000

fuzz: $(DEV)
	$(BIN)/python -m tests.support.fuzz --seed $(SEED) --count $(COUNT)

fmt: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lint: $(DEV) $(RELEASE)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory house

# Size and English of hpcdash/, against the ceilings in tests/house.toml.
house: $(DEV)
	$(BIN)/python -m tests.support.house

bench: $(DEV)
	$(BIN)/python -m benchmarks

docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir build/docs
	@echo "build/docs/index.html"

# The wheel, with man pages, and the sdist.
dist: $(RELEASE)
	rm -rf dist
	$(BIN)/hatchling build

# One file with all that hpcdash depends on, for this Python and platform, and the list of what is in it.
single-file: dist
	$(BIN)/python -m release.single_file dist/*.whl

# All that a release has, checked in empty environments: wheel, sdist, single file, man pages, recipes, checksums, and
# what is in it.
release: $(DEV) single-file
	$(BIN)/python -m release.recipes dist
	cd dist && sha256sum --quiet --check SHA256SUMS
	$(BIN)/python -m pytest -m "long or not long" tests/release

clean:
	rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
