#!/usr/bin/env bash
# Formatting, lint, types and compiler warnings, the same here and in CI. Needs `make test` or `make check` once, for .venv.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"

ruff format --check .
ruff check .
mypy
find csrc -name '*.hpp' -o -name '*.cpp' | xargs clang-format --dry-run -Werror
cmake -S . -B build/check -G Ninja -DWDSBENCH_WERROR=ON -DPython_EXECUTABLE="$PWD/.venv/bin/python" \
  -Dpybind11_DIR="$(python -m pybind11 --cmakedir)" >/dev/null
ninja --quiet -C build/check
echo "checks passed"
