#!/usr/bin/env bash
# Check and measure a GPU in steps that resume. Same as python -m fairseq_plugins.cli.gpu_report.
set -euo pipefail
root=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} exec python -m fairseq_plugins.cli.gpu_report "$@"
