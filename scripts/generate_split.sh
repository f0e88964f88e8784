#!/usr/bin/env bash
# Decode a split with one or more models, unless that was done. Same as python -m fairseq_plugins.cli.generate_split.
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/package.sh"
exec python -m fairseq_plugins.cli.generate_split "$@"
