# The front door. VENV, PYTHON, MINUTES and PYTEST_ARGS may be set on the command line; FILE, KEEP
# and SPARK, too: the demo finds them in its environment, whatever letters are in them.
SHELL := /bin/bash
VENV ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := $(VENV)/bin
MINUTES ?= 1
SPARK ?=
# Many tests wait for processes and time-outs: more workers than cores.
PYTEST_ARGS ?= -n 4 --dist loadgroup
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-input
.DEFAULT_GOAL := help
.PHONY: help install fmt lint types layers pytest test sim scenarios bench bench-pipeline soak cover demo pictures lock ci clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

install: $(VENV)/.spark ## make .venv with everything needed to work on hastore
fmt: $(VENV)/.dev ## put the code in shape
	$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format .
lint: $(VENV)/.dev ## ruff: rules and format
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
types: $(VENV)/.spark ## mypy, strict
	$(BIN)/mypy
layers: $(VENV)/.spark ## import-linter: who may import whom
	$(BIN)/lint-imports
pytest: $(VENV)/.spark ## the tests alone, without lint, types and layers
	@# A failure in the first part does not hide those of the second; 2 is Ctrl-C.
	$(BIN)/pytest -m "alone and not soak"; first=$$?; [ $$first != 2 ] || exit 2; \
	$(BIN)/pytest -m "not soak and not alone" $(PYTEST_ARGS) && [ $$first = 0 -o $$first = 5 ]
test: lint types layers pytest ## the whole test suite, from a fresh clone too
scenarios: $(VENV)/.dev ## every scenario of the catalog, as processes
	$(BIN)/hastore scenario run --all
sim: $(VENV)/.dev ## seeds of the simulator that no test runs, for MINUTES=1 or more
	$(BIN)/hastore sim run --seeds $(if $(SEED),$(SEED),10000) --minutes $(MINUTES)
bench: $(VENV)/.dev ## the bounds table, measured; also build/bench.json
	$(BIN)/python -m tests.bench
bench-pipeline: $(VENV)/.spark ## how fast logs become tables, with and without Spark
	$(BIN)/python -m tests.bench_pipeline
soak: $(VENV)/.spark ## a million messages, hundreds of kills: many minutes
	$(BIN)/pytest -m soak --timeout 3600
cover: $(VENV)/.spark ## the tests with branch coverage
	$(BIN)/pytest -m "not soak" $(PYTEST_ARGS) --cov --cov-branch --cov-report term-missing:skip-covered
demo: $(VENV)/$(if $(SPARK),.spark,.run) ## a master, a slave, real messages, kill, freeze, promote; FILE=PATH for other input, KEEP=DIR to keep it, SPARK=1 asks Spark, too
	$(BIN)/python -m hastore_scenarios.demo_command
pictures: $(VENV)/.dev ## draw what the README shows anew: docs/pictures
	$(BIN)/python -m tests.pictures
lock: ## write requirements/*.lock anew
	requirements/relock.sh
ci: ## what CI runs: a clean venv, then make test
	.ci/run
clean: ## remove what was built and installed here
	rm -rf .venv build dist hastore-runs .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage*

# A stamp each, so that an install happens once for each change of its lock file.
$(VENV)/.run: requirements/run.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --require-hashes -r requirements/run.lock
	$(PIP) --no-deps --no-build-isolation -e .
	touch $@
$(VENV)/.dev: requirements/dev.lock $(VENV)/.run
	$(PIP) --require-hashes -r requirements/dev.lock
	touch $@
$(VENV)/.spark: requirements/spark.lock $(VENV)/.dev
	$(PIP) --require-hashes -r requirements/spark.lock
	touch $@
