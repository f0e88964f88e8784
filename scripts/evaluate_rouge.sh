#!/usr/bin/env bash
# Write headlines for a split, or take a text, and measure ROUGE: fairseq-plugins evaluate rouge, of this checkout.
set -euo pipefail
root=$(CDPATH= cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
PYTHONSAFEPATH=1 PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" exec python -m fairseq_plugins evaluate rouge "$@"
