#!/usr/bin/env bash
# Partial shuffle and adversarial margins, Penn Treebank at a CPU budget.
set -euo pipefail
recipe=reduced_tricks corpus="ptb/prepare.sh"
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../lib.sh"
