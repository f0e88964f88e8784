#!/usr/bin/env bash
# Write headlines for a split, or take a text, and measure ROUGE. Same as python -m fairseq_plugins.cli.evaluate_rouge.
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/package.sh"
exec python -m fairseq_plugins.cli.evaluate_rouge "$@"
