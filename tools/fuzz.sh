#!/usr/bin/env bash
# Feeds every decoder any bytes, for 60 seconds or as many as the first argument says. Needs Clang with libFuzzer
# (Debian: clang, libclang-rt-dev); what it finds is left in build/fuzz.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
clang=${CLANGXX:-clang++}
command -v "$clang" > /dev/null || { echo "$clang was not found: install Clang, or name it in CLANGXX" >&2; exit 1; }
mkdir -p build/fuzz/corpus
"$clang" -std=c++20 -O1 -g -ffp-contract=off -fno-sanitize-recover=all -fsanitize=fuzzer,address,undefined -Isrc/cpp \
  tests/fuzz/decode.cpp src/cpp/codecs/*.cpp src/cpp/base/*.cpp -o build/fuzz/decode
build/fuzz/decode -max_total_time="$seconds" -max_len=4096 -artifact_prefix=build/fuzz/ build/fuzz/corpus
