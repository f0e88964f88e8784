#!/usr/bin/env bash
# Decode a split with one or more models, unless that was done. Same as python -m fairseq_plugins.cli.generate_split.
set -euo pipefail
root=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} exec python -m fairseq_plugins.cli.generate_split "$@"
