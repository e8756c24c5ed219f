#!/usr/bin/env bash
# Runs the fuzzer of data directories with AddressSanitizer in the compiled modules that touch files and records.
#
#   tools/sanitize.sh [words for tests/fuzz/fuzz_store.py]      for example: --seconds 600
#
# Works in a copy below build/sanitized, so that the tree keeps its fast modules. Needs the sanitizer's library,
# which comes with gcc; the modules are built with the options that setup.py gives them.
set -euo pipefail
cd "$(dirname "$0")/.."

copy=build/sanitized
library="$(gcc -print-file-name=libasan.so)"
[ -f "$library" ] || {
    echo "gcc has no libasan.so here" >&2
    exit 1
}
modules="$(grep -o '"iotmq\.\(store\|message\)\.[a-z_.]*"' setup.py | tr -d '"' | paste -sd, -)"

mkdir -p "$copy"
tar -c --exclude='*.so' iotmq tests/fuzz tests/oracles setup.py pyproject.toml README.md | tar -x -C "$copy"
python="$PWD/.venv/bin/python"
cd "$copy"
IOTMQ_BUILD_ONLY="$modules" CFLAGS="-fsanitize=address -fno-omit-frame-pointer -g1" LDFLAGS="-fsanitize=address" \
    "$python" setup.py -q build_ext --inplace --parallel "$(getconf _NPROCESSORS_ONLN)"

# Python itself never gives back all it has; what is asked for too much is refused like anywhere else.
export ASAN_OPTIONS="detect_leaks=0:allocator_may_return_null=1:abort_on_error=0:${ASAN_OPTIONS:-}"
export PYTHONMALLOC=malloc LD_PRELOAD="$library" PYTHONPATH="$PWD"
exec "$python" tests/fuzz/fuzz_store.py "$@"
