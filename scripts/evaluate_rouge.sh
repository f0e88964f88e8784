#!/usr/bin/env bash
# Write headlines for a split, or take a text, and measure ROUGE: fairseq-plugins evaluate rouge, of this checkout.
set -euo pipefail
if ! python -P -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("fairseq") is None)' > /dev/null 2>&1; then
  echo "${0##*/}: no python with fairseq here: source .venv/bin/activate, after bash scripts/setup.sh" >&2
  exit 2
fi
root=$(CDPATH= cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
PYTHONSAFEPATH=1 PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" exec python -m fairseq_plugins evaluate rouge "$@"
