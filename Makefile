# `make demo` and `make test` need Python >= 3.11 (with venv and headers), a C++20 compiler and a package index.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

SOURCES := $(shell find csrc -name '*.hpp' -o -name '*.cpp')

.PHONY: demo test test-faults check clean

## The main job, end to end, on the embedded model; results in wdsbench-demo/.
demo: $(INSTALLED)
	$(BIN)/wdsbench demo

# Tests start many interpreters; each would compile the sources again.
unexport PYTHONDONTWRITEBYTECODE

## All tests, files in JOBS processes; files with slow tests come first.
JOBS ?= 2
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
test: $(INSTALLED)
	$(PYTEST)

## Random trials (faults, kills, seeds) in their full form.
test-faults: $(INSTALLED)
	WDSBENCH_FULL_TRIALS=1 $(PYTEST) -m trials

## Formatting, lint, types, warnings: what CI runs after the tests.
check: $(INSTALLED)
	tools/check.sh

clean:
	rm -rf build $(VENV) wdsbench-demo .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Editable: Python edits are live; a change of C++, CMake or requirements installs again.
$(INSTALLED): pyproject.toml constraints.txt CMakeLists.txt $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --disable-pip-version-check -q -e '.[dev]'
	touch $@
