#!/usr/bin/env bash
# Reuters-21578 at a CPU budget; results in results/reuters21578/README.md.
set -euo pipefail
recipe=reuters21578 corpus="reuters21578/prepare.sh --joined-dictionary"
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../lib.sh"
