#!/usr/bin/env bash
# Transformers on Multi30k at a CPU budget; results in results/multi30k_transformer/README.md.
set -euo pipefail
recipe=multi30k_transformer corpus="multi30k/prepare.sh PAIR"
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../lib.sh"
