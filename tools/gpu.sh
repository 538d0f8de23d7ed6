#!/usr/bin/env bash
# Builds into build/gpu, tests and measures there, on a machine with a GPU: tools/gpu.sh PYTHON. Ends within eight
# minutes; what fails does not stop the rest.
set -u
cd "$(dirname "$0")/.."
"$1" -m pip install --quiet --no-build-isolation --no-deps --upgrade --target build/gpu . || exit
export PYTHONPATH="$PWD/build/gpu"
failed=()

# until_second SECOND COMMAND...: what has not ended by then is ended, and has failed.
until_second() {
  local left=$(($1 - SECONDS))
  timeout -k 5 $((left > 0 ? left : 1)) "${@:2}" || failed+=("${*:2}")
}

# A process for each file: after an illegal access nothing works any more in its process.
for file in tests/gpu/test_*.py; do
  [[ $file == *sanitizer* ]] || until_second 320 "$1" -m pytest "$file"
done
until_second 410 "$1" -u benchmarks/device.py --json benchmarks/results/h200.json
until_second 470 "$1" -m pytest tests/gpu/test_gpu_sanitizer.py  # the slowest
((${#failed[@]} == 0)) || { printf 'failed: %s\n' "${failed[@]}"; exit 1; }
