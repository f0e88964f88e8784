#!/usr/bin/env bash
# Base models of a gate and gates on them, Penn Treebank at a CPU budget; a gate needs --base-model CKPT after SAVE_DIR.
set -euo pipefail
recipe=reduced_base_models corpus="ptb/prepare.sh"
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../lib.sh"
