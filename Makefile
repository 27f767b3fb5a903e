# make demo       sets everything up and runs the quickstart: digits, DP-SGD, certificate, verification
# make test       sets everything up and runs the tests, but for the long ones
# make test-all   runs all tests, the long ones too
# make chaos      kills, power failures, failing disks and races over the four mechanisms: about an hour of a core
# make gpu-check  tests and times what runs on a GPU; takes one (docs/gpu.md)

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
OUT := runs/demo-$(shell date +%Y%m%d-%H%M%S)

.PHONY: demo test test-all chaos gpu-check lint bench schemas

$(BIN)/.train: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[train]'
	touch $@

$(BIN)/.dev: $(BIN)/.train
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[train,dev]'
	touch $@

demo: $(BIN)/.train
	$(BIN)/dprecipe run recipes/quickstart.yaml --out $(OUT)
	$(BIN)/dprecipe verify $(OUT)/release

# A process for each core, each with one thread.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

test: $(BIN)/.dev
	$(PYTEST)

test-all: $(BIN)/.dev
	$(PYTEST) -m "not gpu"

gpu-check: $(BIN)/.dev
	$(BIN)/python benchmarks/gpu_check.py

chaos: $(BIN)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python tests/chaos/chaos.py

lint: $(BIN)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(BIN)/.dev
	for file in $(filter-out benchmarks/gpu%.py,$(wildcard benchmarks/*.py)); do $(BIN)/python $$file; done

schemas: $(BIN)/.train
	$(BIN)/dprecipe schema --out schemas
