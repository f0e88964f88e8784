#!/usr/bin/env bash
# Check and measure a GPU in steps that resume. Same as python -m fairseq_plugins.cli.gpu_report.
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/package.sh"
exec python -m fairseq_plugins.cli.gpu_report "$@"
