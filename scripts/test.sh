#!/usr/bin/env bash
# Set up .venv if needed and run the tests; further arguments go to pytest.
set -euo pipefail

if [[ ${1:-} == --help ]]; then
  echo "usage: bash scripts/test.sh [pytest arguments]
  bash scripts/test.sh -m 'not slow'   leaves the long tests out"
  exit 0
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
source .venv/bin/activate
ruff check --quiet --line-length 120 --select E,F,I,B,W --ignore B905 .
ruff format --quiet --check --line-length 120 .
pyrefly check --config scripts/pyrefly.toml --summary=none
python -m pytest tests --quiet --durations 10 --numprocesses 2 --dist loadfile --no-loadscope-reorder "$@"
