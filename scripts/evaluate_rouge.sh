#!/usr/bin/env bash
# Write headlines for a split, or take a text, and measure ROUGE. Same as python -m fairseq_plugins.cli.evaluate_rouge.
set -euo pipefail
root=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} exec python -m fairseq_plugins.cli.evaluate_rouge "$@"
