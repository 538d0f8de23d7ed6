#!/usr/bin/env bash
# Builds an sdist, a wheel from the sdist, and installs that in a fresh environment, without torch, MPI or CUDA, and
# uses it.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
rm -rf dist build/package
$python -m build --quiet --outdir dist .
python3 -m venv build/package
build/package/bin/python -m pip install --quiet --disable-pip-version-check dist/gpucomm-*.whl
cd build/package
bin/python - <<'CODE'
import sys
import numpy as np
import gpucomm
assert not {"torch", "mpi4py", "matplotlib"} & set(sys.modules), "import gpucomm must stay light"
comm = gpucomm.init()
assert comm.all_reduce(np.ones(3)).tolist() == [1, 1, 1]
print("the wheel made from the sdist installs and runs:", comm)
CODE
bin/gpucomm doctor > /dev/null
bin/gpucomm run -n 2 -m gpucomm doctor > /dev/null
cd ../.. && rm -rf build/package
