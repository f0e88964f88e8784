#!/usr/bin/env bash
# Translate a split, or take a text, and measure BLEU and chrF. Same as python -m fairseq_plugins.cli.evaluate_translation.
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/package.sh"
exec python -m fairseq_plugins.cli.evaluate_translation "$@"
