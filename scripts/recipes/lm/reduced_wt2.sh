#!/usr/bin/env bash
# WikiText-2 at a CPU budget; results in results/wt2_reduced.
set -euo pipefail
recipe=reduced_wt2 corpus="wikitext-2/prepare.sh"
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../lib.sh"
