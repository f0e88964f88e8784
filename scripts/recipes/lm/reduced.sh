#!/usr/bin/env bash
# Penn Treebank at a CPU budget; results in results/ptb_reduced, results/drill_reduced and results/mmlstm.
set -euo pipefail
recipe=reduced corpus="ptb/prepare.sh"
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../lib.sh"
