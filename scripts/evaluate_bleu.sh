#!/usr/bin/env bash
# Translate a split, or take a text, and measure BLEU and chrF: fairseq-plugins evaluate bleu, of this checkout.
set -euo pipefail
root=$(CDPATH= cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
PYTHONSAFEPATH=1 PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" exec python -m fairseq_plugins evaluate bleu "$@"
