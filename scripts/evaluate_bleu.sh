#!/usr/bin/env bash
# Translate a split, or take a text, and measure BLEU and chrF. Same as python -m fairseq_plugins.cli.evaluate_translation.
set -euo pipefail
root=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} exec python -m fairseq_plugins.cli.evaluate_translation "$@"
