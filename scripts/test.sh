#!/usr/bin/env bash
# Set up .venv if needed and run the tests; further arguments go to pytest.
set -euo pipefail

usage="usage: bash scripts/test.sh [--fast] [pytest arguments]
  --fast   leaves out the tests that are marked slow; every package keeps the others"

selected=()
case ${1:-} in
  --help | -h)
    echo "$usage"
    exit 0
    ;;
  --fast)
    selected=(-m "not slow")
    shift
    ;;
esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
source .venv/bin/activate
ruff check --quiet --line-length 120 --select E,F,I,B,W --ignore B905 .
ruff format --quiet --check --line-length 120 .
pyrefly check --config scripts/pyrefly.toml --summary=none
python -m pytest tests --quiet --durations 10 --numprocesses 2 --dist loadfile --no-loadscope-reorder \
  ${selected[@]+"${selected[@]}"} "$@"
