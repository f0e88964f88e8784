#!/usr/bin/env bash
# Set up .venv if needed, check style and types, and run the tests; further arguments go to pytest.
set -euo pipefail

usage="usage: bash scripts/test.sh [--fast] [--coverage] [pytest arguments]
  --fast      leaves out tests/integration, and the tests that are marked slow
  --coverage  ends with a table of the lines and branches of the package that the tests ran in their own process
  FAIRSEQ_PLUGINS_CORPORA=DIR in the environment: the folder of the real corpora, DIR/ptb, DIR/multi30k ..."

selected=() given=()
for argument in "$@"; do
  case $argument in
    --help | -h) echo "$usage"; exit 0 ;;
    --fast) selected+=(-m "not slow") ;;
    --coverage) selected+=(--cov fairseq_plugins --cov-branch --cov-report term:skip-covered) ;;
    *) given+=("$argument") ;;
  esac
done
corpora=${FAIRSEQ_PLUGINS_CORPORA:-}
[[ -z $corpora || -d $corpora ]] || { echo "test.sh: error: FAIRSEQ_PLUGINS_CORPORA=$corpora is no folder" >&2; exit 2; }
[[ -z $corpora ]] || export FAIRSEQ_PLUGINS_CORPORA=$(CDPATH= cd "$corpora" && pwd)
CDPATH= cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
bash scripts/setup.sh
source .venv/bin/activate
ruff check --quiet --line-length 120 --select E,F,I,B,W --ignore B905 .
ruff format --quiet --check --line-length 120 .
pyrefly check --config scripts/pyrefly.toml --summary=none
# as fairseq-train has it: a tenth of the time less
export GLIBC_TUNABLES=${GLIBC_TUNABLES-$(python -c "from fairseq_plugins.processes import TUNABLES; print(TUNABLES)")}
# the option, not an argument, so that paths among the arguments take its place
python -m pytest -o testpaths=tests --quiet --durations 10 --numprocesses 2 --dist loadfile --no-loadscope-reorder \
  ${selected[@]+"${selected[@]}"} ${given[@]+"${given[@]}"}
