#!/usr/bin/env bash
# Annotated English Gigaword with the settings of Takase et al. 2018.
set -euo pipefail
recipe=gigaword corpus="gigaword/prepare.sh --from DIR"
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../lib.sh"
