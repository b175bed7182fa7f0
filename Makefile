# `make demo` and `make test` do everything on a fresh machine: virtual environment, install, run.

PYTHON ?= python3
TORCH ?= torch==2.13.0
TEST_PROCESSES ?= 3
VENV := .venv
BIN := $(VENV)/bin
TRAINS := $(VENV)/.trains
READY := $(VENV)/.ready
ISOLATED := $(BIN)/python -m tests.aws.isolated

.PHONY: demo test lint format types imports tests trackers vms soak pairs bench docs site clean

demo: $(TRAINS)
	$(BIN)/bamboo demo --yes

test: lint types imports site tests vms

# Two at a time: the tests of machines mostly wait, so they go beside the others.
ifeq ($(MAKECMDGOALS),test)
MAKEFLAGS += --jobs=2
endif

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY)
	$(BIN)/mypy

imports: $(READY)
	$(BIN)/lint-imports

# Tests of whole clusters wait more than they compute, so there are more of them at a time than the two cores of CI.
tests: $(READY)
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadscope --no-loadscope-reorder

# AWS with real machines behind its instances; needs root, and says what else (tests/aws/README.md).
vms: $(READY)
	$(ISOLATED) $(BIN)/python -m pytest -m "vms and not soak" tests/aws

# Weights & Biases and MLflow as they are; too large for every developer and every run of CI.
trackers: $(READY)
	$(BIN)/python -m pip install --quiet --editable ".[wandb,mlflow]"
	$(BIN)/python -m pytest tests/tracking

soak: $(READY)
	$(BIN)/python -m pytest -m "soak and not vms"
	$(ISOLATED) $(BIN)/python -m pytest -m "soak and vms" tests/aws

# Every pair of losses in the small worlds: days of one core. For some of them: make pairs ONLY="2x2x2 and bubble"
ONLY ?= test
pairs: $(READY)
	$(BIN)/python -m pytest -n auto -m exhaustive -k "$(ONLY)" tests/trainer/test_pairs_of_losses.py

bench: $(READY)
	$(BIN)/python -m benchmarks.pipeline_vs_torch
	$(BIN)/python -m benchmarks.failover_pause
	$(BIN)/python -m benchmarks.pause_vs_peers
	$(BIN)/python -m benchmarks.protection_price
	$(BIN)/python -m benchmarks.protection_memory
	$(BIN)/python -m benchmarks.loss_curves
	$(BIN)/python -m benchmarks.worker_start
	$(BIN)/python -m benchmarks.big_ledger
	$(BIN)/python -m benchmarks.wide_status

docs: $(READY)
	$(BIN)/python -m bamboo_cli.reference
	$(BIN)/python -m tests.cli.pictures

# The site of docs/ in site/; a warning is an error.
site: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

# What training needs, and then what developing needs as well; made again when what is installed has changed. TORCH comes
# first, so that a machine may choose its own build of it (make TORCH=torch==2.13.0+cpu); without an ensurepip module
# (Debian) virtualenv makes the environment.
$(TRAINS): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || $(PYTHON) -m virtualenv $(VENV)
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable ".[train]"
	touch $@

$(READY): $(TRAINS)
	$(BIN)/python -m pip install --quiet --editable ".[train,aws,docs,dev]"
	touch $@
