#!/usr/bin/env bash
# Builds the extension with each named sanitizer (address, undefined, thread) in an environment of its own and
# runs the tests whose ranks are threads, in two processes side by side. One has emulated GPUs: `thread` looks
# for races of their threads too, within a thread block and between two.
# `sanitize.sh build KIND...` and `sanitize.sh check KIND...` do one half each.
set -euo pipefail
cd "$(dirname "$0")/.."
tests=(tests/test_{arguments,coalesce,collectives,device_any_call,device_refused,devices,heap,links,mixed_calls,point_to_point,shrink,uneven}.py)
# Of the coded calls what differs by threads: in full they take minutes.
tests+=(tests/test_coded.py::test_{many_in_flight_and_shared_arrays,a_list_of_arrays_travels_coded_too,the_bits_are_the_same_whether_errors_are_told})
# Of the calls in worlds of every size, those of three ranks: more are slow and tell no more of threads. Nor do
# arrays that are only long, counts of memory, and the other shape of emulated links.
selected='not fork and not as_they_like and not test_the_host_waits and not ((test_all_to_all or test_dtypes_and_counts or test_gathering or test_reduce_scatter or private_arrays) and (2 or 4 or 5 or 7 or 8)) and not (long_sums and (5 or 7 or 8)) and not 300001 and not allocate_nothing and not (from_threads and bounded) and not (test_collectives and bound and scratch) and not (results_are_the_same and chain)'
# What codes other numbers by the same threads, or adds them up otherwise.
selected+=' and not ((same_bits or same_errors) and (fp8 or int4 or bf16)) and not ((test_emulated_kernels or test_emulated_collectives) and (all_magnitudes or mpc:3 or 1e-2-20 or mean-float16 or premul_sum-float32 or gather-ring_per_hop or scatter-two_shot or (of_squares and not bfloat16) or (mpc and many and float64)))'
alone=(tests/test_reduce.py tests/test_plans.py tests/test_codecs.py tests/test_codec_formats.py) # they start no threads
# Hypothesis tries its many calls, and each rank has a device of its own, on the host device alone.
emulated=(tests/test_device_{bounded,graphs,one_stream,order}.py tests/emulated/test_emulated_{kernels,collectives}.py --deselect tests/emulated/test_emulated_collectives.py::test_a_device_for_each_rank --deselect tests/emulated/test_emulated_collectives.py::test_any_call_has_the_bits_of_host_memory)

# The extension of one sanitizer.
build() {
  local kind=$1 venv=.venv-$1
  test -x $venv/bin/python || python3 -m venv $venv
  $venv/bin/python -m pip install --quiet scikit-build-core pybind11 cmake ninja numpy pytest pytest-timeout hypothesis zfpy
  GPUCOMM_SANITIZE=$kind $venv/bin/python -m pip install --quiet --no-build-isolation --no-deps \
    --config-settings=build-dir=build/$kind --config-settings=cmake.build-type=RelWithDebInfo --config-settings=install.strip=false \
    --config-settings=cmake.define.CMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1" .
  rm -rf build/emulated-$kind
  run $kind tests/on_emulated.py
}

# Python with the extension of one sanitizer.
run() {
  local kind=$1 venv=.venv-$1 preload="" python site
  shift
  [ "$kind" = address ] && preload="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libstdc++.so)"
  [ "$kind" = thread ] && preload="$(g++ -print-file-name=libtsan.so)"
  # A real interpreter binary: a sanitizer preloaded into a shell shim stops there. The forking test is left
  # out: neither runtime supports more after fork than exec. So is the test that wants a race.
  python=$($venv/bin/python -c 'import os, sys; print(os.path.realpath(sys.executable))')
  site=$($venv/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  GPUCOMM_SANITIZE=$kind GPUCOMM_EMULATION=$PWD/build/emulated-$kind \
    OPENBLAS_NUM_THREADS=1 LD_PRELOAD="$preload" PYTHONPATH="$site:tests" PYTHONMALLOC=malloc HYPOTHESIS_STORAGE_DIRECTORY=build/hypothesis \
    ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
    TSAN_OPTIONS=halt_on_error=1:report_thread_leaks=0:suppressions=tools/tsan.supp \
    timeout 1800 "$python" "$@"
}

# Its tests.
check() {
  local kind=$1 more=("${alone[@]}")
  [ "$kind" = thread ] && more=()
  local pytest=(-m pytest -p no:faulthandler -s -x -k "$selected" -m "not processes and not timing" -W ignore)
  echo "== $kind sanitizer"
  run $kind "${pytest[@]}" "${emulated[@]}" &
  local other=$! failed=0
  run $kind "${pytest[@]}" "${tests[@]}" "${more[@]}" || failed=1
  wait $other || failed=1
  [ $failed = 0 ]
}

halves=(build check)
case "${1-}" in build | check) halves=("$1") && shift ;; esac
for kind in "$@"; do
  for half in "${halves[@]}"; do $half $kind; done
done
