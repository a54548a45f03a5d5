# Everything here sets itself up: it needs python3 (3.11 to 3.13) with venv, and make.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCE := common client_app strategies server_app specfed
READY := $(VENV)/.ready

.PHONY: help demo test test-fast test-browser test-network test-docker check format bench clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

demo: $(READY)  ## a real federation on this machine, with a report
	$(BIN)/specfed demo

test: $(READY)  ## all tests that any user can run, real federations over gRPC included
	$(BIN)/python -m pytest -m "not browser and not network and not docker"

test-fast: $(READY)  ## the tests that start no federation
	$(BIN)/python -m pytest -m "not slow and not browser and not network and not docker"

test-browser: $(READY)  ## look at the report in a headless browser; needs chromium
	$(BIN)/python -m pytest -m browser

test-network: $(READY)  ## a federation of four hosts with NAT and a cut line; needs root, iproute2, iptables
	$(BIN)/python -m pytest -m network

test-docker: $(READY)  ## a federation in containers; needs a Docker engine with docker compose
	$(BIN)/python -m pytest -m docker

check: $(READY)  ## format, lint, types, import directions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(READY)  ## put the code into its one form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)  ## measure, and write benchmarks/results
	$(BIN)/python -m benchmarks.runner
	$(BIN)/python -m benchmarks.filters
	$(BIN)/python -m benchmarks.scoring
	$(BIN)/python -m benchmarks.drift
	$(BIN)/python -m benchmarks.allocator
	$(BIN)/python -m benchmarks.deployment

clean:  ## remove the environment and caches, never runs/
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)
