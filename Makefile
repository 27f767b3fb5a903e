# make demo       sets everything up and runs the quickstart: digits, DP-SGD, certificate, verification
# make test       sets everything up and runs the tests, but for the long ones: 6 to 9 minutes *
# make test-long  runs the long tests only (many kills, many examples, several processes): 30 minutes *
# make test-light runs each command without the extras, in an environment that it makes: 2 minutes *
#                 with LIGHT_PYTHON=python3.13, of that Python
# make test-all   runs all three, which is all but what takes a GPU: 42 minutes *
# make test-newest  runs the tests with the newest packages instead of those in constraints.txt *
# make test-oldest  runs the tests with the oldest packages that pyproject.toml accepts *
# make test-mechanism  runs the tests of one mechanism: make test-mechanism MECHANISM=dpsgd
# make check      holds the code against ruff (lint and format) and mypy (strict types): 1 minute *
# make chaos      kills, power failures, failing disks and races over all mechanisms: about an hour of a core
# make gpu-check  tests and times what runs on a GPU; takes one (docs/project/gpu.md)
# make gpu-wheels fetches what benchmarks/gpu_lent.sh needs on a GPU machine without a network (Python 3.12, x86-64)
# make bench      times what the project promises to be fast
# make bench-check  measures the ratios of benchmarks/ratios.json again and says which have moved; some minutes
# make docs       builds the site of docs/ into site/ and follows every link: half a minute *
# make schemas    writes the JSON Schemas in schemas/ anew
# make pins       writes constraints.txt: the newest packages that fit together
# make package    builds the source distribution and the wheel into dist/, and checks them as PyPI does: half a minute *
# make sbom       writes the bill of what the wheel in dist/ brings along (CycloneDX)
#
# * on two cores that do nothing else, once the environment is there

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Exact versions of all that is installed; for a file of other versions, an environment of its own.
CONSTRAINTS ?= constraints.txt
OUT := runs/demo-$(shell date +%Y%m%d-%H%M%S)

.PHONY: demo test test-long test-light test-all test-newest test-oldest test-mechanism check chaos gpu-check gpu-wheels bench bench-check docs schemas pins package sbom

# What is imported is compiled then, once; to compile all would take longer than the rest of the installation.
export PYTHONDONTWRITEBYTECODE :=
PIP_INSTALL := $(BIN)/python -m pip install -q --no-compile -c $(CONSTRAINTS)
INSTALL := $(PIP_INSTALL) --build-constraint $(CONSTRAINTS)

$(BIN)/.pip: $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --upgrade pip
	touch $@

$(BIN)/.train: pyproject.toml $(BIN)/.pip
	$(INSTALL) -e '.[train]'
	touch $@

$(BIN)/.dev: $(BIN)/.train
	$(INSTALL) -e '.[train,ray,keep,dev]'
	touch $@

RESOLVE := $(BIN)/uv pip compile -q --no-annotate pyproject.toml
$(BIN)/.uv: $(BIN)/.pip
	$(INSTALL) uv
	touch $@

# The digits are so few that a second thread only waits.
demo: $(BIN)/.train
	OMP_NUM_THREADS=1 $(BIN)/dprecipe run recipes/quickstart.yaml --out $(OUT)
	$(BIN)/dprecipe verify $(OUT)/release

# A process for each core, each with one thread.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

test: $(BIN)/.dev
	$(PYTEST) $(OPTIONS)

test-long: $(BIN)/.dev
	$(PYTEST) -m "slow and not gpu" $(OPTIONS)

test-light: $(BIN)/.dev
	$(PYTEST) -n 0 -m light

test-all: test test-long test-light

# Other packages than the pinned ones, but for torch; their warnings are listed and fail nothing.
test-newest:
	rm -rf $(VENV)-newest
	$(MAKE) test VENV=$(VENV)-newest CONSTRAINTS=constraints.in OPTIONS='-W default $(OPTIONS)'

test-oldest: $(BIN)/.uv
	rm -rf $(VENV)-oldest
	$(RESOLVE) $(addprefix --extra ,train ray keep hub docs dev) -c constraints.in --resolution lowest-direct \
	    --python $(BIN)/python -o $(BIN)/oldest.txt
	$(MAKE) test VENV=$(VENV)-oldest CONSTRAINTS=$(BIN)/oldest.txt OPTIONS='-W default $(OPTIONS)'

MECHANISM ?= $(error name a mechanism: make test-mechanism MECHANISM=dpsgd, or encoded, pate, pnsgd, correlated)
test-mechanism: $(BIN)/.dev
	$(PYTEST) tests/mechanisms/$(MECHANISM)

check: $(BIN)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests/gpu benchmarks/gpu.py benchmarks/gpu_check.py .github/release.py
	$(BIN)/mypy -p tests.pretend_cuda -p docs.site

chaos: $(BIN)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python tests/chaos/chaos.py

gpu-check: $(BIN)/.dev
	$(INSTALL) -e '.[hub]'
	$(BIN)/python benchmarks/gpu_check.py

# What an image for GPUs with torch, lightning, transformers and pytest lacks, and opacus for the comparison.
GPU_WHEELS := pydantic pydantic-core annotated-types typing-inspection cryptography cffi pycparser dp-accounting dm-tree opacus
PLATFORMS := $(foreach name,manylinux_2_34 manylinux_2_28 manylinux_2_17 manylinux2014 manylinux1,--platform $(name)_x86_64)
gpu-wheels: $(BIN)/.train
	rm -rf .whl
	$(BIN)/python -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp $(PLATFORMS) \
		-c constraints.txt -d .whl $(GPU_WHEELS)

BENCHMARKS := accountants encoder endtoend engine language ledger noise pate pnsgd startup trainer
bench: $(BIN)/.dev
	for name in $(BENCHMARKS); do OMP_NUM_THREADS=1 $(BIN)/python benchmarks/$$name.py; done

# make bench-check OPTIONS=--strict ends with an error where a ratio has grown beyond its range.
bench-check: $(BIN)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/check.py $(OPTIONS)

# What it installs has no torch. A version's site lies in a folder of its own; those of other versions stay.
$(BIN)/.docs: pyproject.toml $(BIN)/.pip
	$(INSTALL) -e '.[docs]'
	touch $@

docs: $(BIN)/.docs
	$(BIN)/python -m docs.site.build

schemas: $(BIN)/.train
	$(BIN)/dprecipe schema --out schemas

# For every platform and every Python that pyproject.toml accepts. With UPGRADE= only what it no longer accepts changes.
UPGRADE ?= --upgrade
pins: $(BIN)/.uv
	$(RESOLVE) constraints.in --all-extras --universal --python-version 3.11 $(UPGRADE) --prerelease if-necessary \
	    --custom-compile-command 'make pins' -o constraints.txt

$(BIN)/.package: $(BIN)/.pip
	$(INSTALL) build hatchling twine
	touch $@

$(BIN)/.sbom: $(BIN)/.pip
	$(INSTALL) cyclonedx-bom
	touch $@

# The wheel is built of the source distribution, so that whoever has that can build the same.
DIST ?= dist
package: $(BIN)/.package
	rm -rf $(DIST)
	$(BIN)/python -m build -n -o $(DIST)
	$(BIN)/python -m twine check --strict $(DIST)/*

# A bill of what the wheel in dist/ brings along. Its reader of pyproject.toml knows no version that stands elsewhere.
SBOM ?= $(DIST).cdx.json
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' dprecipe/__init__.py)
sbom: $(BIN)/.sbom
	rm -rf $(VENV)-light
	$(PYTHON) -m venv --without-pip $(VENV)-light
	$(BIN)/python -m pip --python $(VENV)-light install -q -c $(CONSTRAINTS) $(DIST)/*.whl
	sed "s/^dynamic = .*/version = '$(VERSION)'/" pyproject.toml > $(BIN)/pyproject.toml
	$(BIN)/cyclonedx-py environment --pyproject $(BIN)/pyproject.toml --output-reproducible -o $(SBOM) $(VENV)-light
