#!/usr/bin/env bash
# AG News at a CPU budget; results in results/agnews/README.md.
set -euo pipefail
recipe=agnews corpus="agnews/prepare.sh --joined-dictionary"
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../lib.sh"
