# The front door. VENV, PYTHON, MINUTES, ONLY and PYTEST_ARGS may be set on the command line; FILE, KEEP
# and SPARK, too: the demo finds them in its environment, whatever letters are in them.
SHELL := /bin/bash
# Another PYTHON has its own environment: make test PYTHON=python3.12
VENV ?= .venv$(if $(filter command line,$(origin PYTHON)),-$(notdir $(PYTHON)))
# Without PYTHON, a new environment gets the quickest of these.
PYTHON ?=
PYTHONS := python3.11 python3.12 python3.13
CHOOSE = "$$(command -v python3.11 || command -v python3)" requirements/choose_python.py $(PYTHONS)
BIN := $(VENV)/bin
MINUTES ?= 1
SPARK ?=
ONLY ?=
# Many tests wait for processes, disks and time-outs: many more workers than cores.
PYTEST_ARGS ?= -n 6 --dist loadgroup
# What starts no node and needs no Spark.
PURE := tests/wire tests/store tests/concurrency tests/dispatch tests/native tests/test_config.py
# What runs nodes, in the simulator and as processes.
NODES := $(addprefix tests/,broker cli client env flush ha hostile integration scenarios sim testing_plugin)
# Where bytecode is not kept (some containers say so), each of the thousand processes that the tests
# start compiles 160 modules first.
export PYTHONDONTWRITEBYTECODE :=
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-input
.DEFAULT_GOAL := help
.PHONY: help install fmt lint types layers pytest test quick pure test-pythons try-python sim scenarios bench bench-pipeline soak cover demo pictures lock ci clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

install: $(VENV)/.spark ## make .venv with everything needed to work on hastore
fmt: $(VENV)/.dev ## apply ruff's fixes and format
	$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format .
lint: $(VENV)/.dev ## ruff: rules and format
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
types: $(VENV)/.spark ## mypy, strict
	$(BIN)/mypy
layers: $(VENV)/.spark ## import-linter: who may import whom
	$(BIN)/lint-imports
pytest: $(VENV)/.spark ## the tests alone, without lint, types and layers
	$(BIN)/pytest $(PYTEST_ARGS)
# `make test` runs lint, types and layers beside the tests, which often only wait.
ifeq ($(MAKECMDGOALS),test)
MAKEFLAGS += -j2
endif
test: lint types layers pytest ## the whole test suite, from a fresh clone too
quick: lint types layers $(VENV)/.spark ## lint, types, layers and the tests that start no process: a minute
	$(BIN)/pytest -q -n 2 $(PURE) tests/columnar
pure: $(VENV)/.spark ## the tests again without the C extension, except those of packages, bench and Spark
	HASTORE_PURE=1 $(BIN)/pytest -q $(PYTEST_ARGS) $(PURE) $(NODES) tests/columnar tests/golden
test-pythons: ## the tests without processes, and some with, on each Python of 3.11 to 3.13 that is here
	@for python in $(PYTHONS); do \
		if $$python -c '' 2>/dev/null; then $(MAKE) --no-print-directory try-python PYTHON=$$python || exit 1; \
		else echo "$$python is not here: skipped"; fi; done
try-python: $(VENV)/.dev
	$(BIN)/pytest -q -n 2 $(PURE) tests/cli/test_nodes.py tests/cli/test_produce.py tests/integration/test_stop.py
scenarios: $(VENV)/.dev ## every scenario of the catalog, as processes
	$(BIN)/hastore scenario run --all
sim: $(VENV)/.dev ## seeds of the simulator that no test runs, for MINUTES=1 or more
	$(BIN)/hastore sim run --seeds $(if $(SEED),$(SEED),10000) --minutes $(MINUTES)
bench: $(VENV)/.dev ## speed on this machine: all of it, or ONLY=bounds,tcp,…; also build/bench.json
	$(BIN)/python -m tests.bench --only $(ONLY)
bench-pipeline: $(VENV)/.spark ## how fast logs become tables, with and without Spark
	$(BIN)/python -m tests.bench_pipeline
soak: $(VENV)/.spark ## a million messages, hundreds of kills: many minutes
	$(BIN)/pytest -m soak --timeout 3600
cover: $(VENV)/.spark ## the tests with branch coverage
	$(BIN)/pytest $(PYTEST_ARGS) --cov --cov-branch --cov-report term-missing:skip-covered
demo: $(VENV)/$(if $(filter-out 0,$(SPARK)),.spark,.cluster) ## a master, a slave, real messages, kill, freeze, promote; FILE=PATH for other input, KEEP=DIR to keep it, SPARK=1 asks Spark, too
	$(BIN)/python -m hastore_scenarios.demo.command
pictures: $(VENV)/.dev ## draw the README's pictures again: docs/pictures
	$(BIN)/python -m tests.pictures
lock: ## write requirements/*.lock again
	requirements/relock.sh
ci: ## what CI runs: a clean venv, then make test
	.ci/run
clean: ## remove what was built and installed here
	rm -rf .venv .venv-* build dist hastore-runs .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage* hastore/native/*.so

# A stamp each, so that an install happens once for each change of its lock file.
# --no-deps: a lock has all of them, and pip would look for newer ones of what is named with extras.
$(VENV)/.run: requirements/run.lock pyproject.toml hatch_build.py $(wildcard hastore/native/*.c hastore/native/*.h)
	@test -x $(BIN)/python || { python="$(or $(PYTHON),$$($(CHOOSE)))" && "$$python" -m venv $(VENV); }
	$(PIP) --no-deps --require-hashes -r requirements/run.lock
	$(PIP) --no-deps --no-build-isolation -e .
	@$(BIN)/hastore version | grep '^extension'
	touch $@
$(VENV)/.cluster: requirements/cluster.lock $(VENV)/.run
	$(PIP) --no-deps --require-hashes -r requirements/cluster.lock
	touch $@
$(VENV)/.dev: requirements/dev.lock $(VENV)/.cluster
	$(PIP) --no-deps --require-hashes -r requirements/dev.lock
	touch $@
$(VENV)/.spark: requirements/spark.lock $(VENV)/.dev
	$(PIP) --no-deps --require-hashes -r requirements/spark.lock
	touch $@
