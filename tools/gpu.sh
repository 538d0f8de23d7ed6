#!/usr/bin/env bash
# Builds into build/gpu, tests and measures there, on a machine with a GPU: tools/gpu.sh PYTHON [PART...]. Ends
# within eight minutes; what fails does not stop the rest. A part is a file of tests/gpu ("kernels") or
# "benchmark"; without any all run. The tests run at the same time, the benchmark alone.
# OUT: a folder that gets logs.tar.gz and the results, if set; else it is build/gpu-results.
set -u
cd "$(dirname "$0")/.."
python=$1 out=${OUT:-build/gpu-results} parts=" ${*:2} "
known=(benchmark $(basename -s .py tests/gpu/test_gpu_*.py | sed 's/test_gpu_//'))
for name in "${@:2}"; do
  [[ " ${known[*]} " == *" $name "* ]] || { echo "no part $name: the parts are ${known[*]}" >&2; exit 2; }
done
mkdir -p "$out"
out=$(realpath "$out")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# What a torch never seen here warns of is no failure; a test that hangs tells where.
export PYTEST_ADDOPTS="-rfEs --tb=short -W default -o faulthandler_timeout=60 --maxfail=25"
export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1  # what is killed has told what it knew
export PYTHONPATH="$PWD/build/gpu${PYTHONPATH:+:$PYTHONPATH}"

# part NAME MOST END COMMAND...: its output becomes NAME.log, how it ends NAME.code. What takes more than MOST
# seconds, or is there at second END of all, is interrupted, at which pytest tells what it has, and has failed.
part() {
  local log=$scratch/$1.log code=0 left=$(($3 - SECONDS))
  [[ $1 == build || $parts == "  " || $parts == *" ${1#test_gpu_} "* ]] || return 0
  ((left < $2)) || left=$2
  if ((left < 5)); then
    echo "not begun: no time is left" >"$log"
    code=124
  else  # bash has what runs beside it ignore interrupts
    env --default-signal=INT timeout -s INT -k 10 "$left" "${@:4}" >"$log" 2>&1 || code=$?
    ((code != 124 && code != 137)) || echo "not ended after $left s" >>"$log"
  fi
  echo "$code" >"$scratch/$1.code"
  pack
  printf '%4d s  %s: %s\n' "$SECONDS" "$1" "$(tail -n 1 "$log" | cut -c 1-200)"
}

# The logs so far: who ends us leaves what there is.
pack() (
  cd "$scratch" && exec 9>lock && flock 9
  tar -czf logs.new ./*.log && mv logs.new "$out/logs.tar.gz"
)

# The list of what has failed comes last, and all fits on a few screens, however much has failed.
end() {
  local name failed=()
  for name in "$scratch"/*.code; do
    [[ $(<"$name") == 0 ]] || failed+=("$(basename "$name" .code)")
  done
  printf '\nlogs and results: %s\n' "$out"
  grep -h '^SKIPPED' "$scratch"/*.log | sort -u | cut -c 1-200 | head -n 10
  ((${#failed[@]})) || exit 0
  for name in "${failed[@]}"; do
    printf '\n== %s, at its end:\n' "$name"
    tail -c $((8000 / ${#failed[@]})) "$scratch/$name.log"
  done
  printf '\nfailed:'
  printf ' %s' "${failed[@]}"
  echo
  exit 1
}

# A process for each file: after an illegal access nothing works any more in its process.
tests() { part "$(basename "$1" .py)" "$2" "$3" "$python" -m pytest "$1"; }

pip=("$python" -m pip install --quiet --no-build-isolation --no-deps --upgrade --target build/gpu)
part build 200 200 "${pip[@]}" .
[[ $(<"$scratch/build.code") == 0 ]] || end
for file in tests/gpu/test_*.py; do
  [[ $file == *sanitizer* ]] || tests "$file" 120 270 &
done
wait
rm -f "$out"/*.json
part benchmark 365 365 "$python" -u benchmarks/device.py --json "$out" # a file of the GPU's name
for file in "$out"/*.json; do
  [[ ! -f $file ]] || cp "$file" benchmarks/results/
done
export SANITIZER_LIMIT_S=$(((470 - SECONDS) / 2 - 5))  # for each of its two tools
tests tests/gpu/test_gpu_sanitizer.py 470 470
end
