# make pretrain   pre-train the tiny size on the bundled corpus (creates its environment first)
# make test       the tests
# make test-slow  kills, several processes, compilation
# make test-nodes two nodes on this machine (four minutes; not in .ci/run)
# make test-tf    the reader of TensorFlow checkpoints (installs TensorFlow, about 250 MB)
# make bench      short versions of the benchmarks (about two minutes each on two cores)
# make quality    ruff, formatting, import contract, types, dense code, and the site
# make docs       the site of the documentation, in build/site; a broken link is an error
PYTHON ?= python3
VENV ?= .venv
OUTPUT_DIR ?= runs/pretrain
# More flags for the command, for instance ARGS='--max_steps 100'.
ARGS ?=

BIN := $(VENV)/bin
CORES := $(shell getconf _NPROCESSORS_ONLN)
# One test process per core, at most four; each takes about 1 GB of memory.
WORKERS := $(shell getconf _NPROCESSORS_ONLN | awk '{ print ($$1 < 4) ? $$1 : 4 }')
# Python compiles the modules that are imported, on first use; to compile all of them takes a minute longer.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal
# Containers often set this variable; then each process that a test starts compiles the package again.
export PYTHONDONTWRITEBYTECODE :=
# What the site shows: pages, and the pictures in them.
PAGES := README.md CONTRIBUTING.md CHANGELOG.md docs examples model_cards benchmarks
# Spelled out, so that `accelerate launch` neither asks nor warns, and uses all cores where there is no GPU.
LAUNCH := $(BIN)/accelerate launch --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no \
	--num_cpu_threads_per_process $(CORES)

.PHONY: pretrain test test-slow test-nodes test-tf bench quality docs style clean

pretrain: $(VENV)/.installed
	$(LAUNCH) examples/pretrain.py --output_dir $(OUTPUT_DIR) --overwrite_output_dir $(ARGS)

test: $(VENV)/.installed-dev
	$(PYTEST)

test-slow: $(VENV)/.installed-dev
	$(PYTEST) -m slow

test-nodes: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m nodes

test-tf: $(VENV)/.installed-tf
	$(BIN)/python -m pytest -m tensorflow

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/pretraining_step.py --short
	$(BIN)/python benchmarks/data.py --short

quality: $(VENV)/.installed-dev docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/python .ci/density src examples benchmarks tests

docs: $(VENV)/.installed-dev
	mkdir -p build/pages
	ln -sfn $(addprefix $(CURDIR)/,$(PAGES)) build/pages
	$(BIN)/mkdocs build --strict

style: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.installed: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (some minutes the first time) ..."
	$(INSTALL) -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(INSTALL) -e '.[test,quality]'
	@touch $@

$(VENV)/.installed-tf: $(VENV)/.installed-dev
	$(INSTALL) -e '.[tf]'
	@touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
