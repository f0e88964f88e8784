#!/usr/bin/env bash
# Encoder-decoders on Multi30k at a CPU budget; results in results/multi30k/five_epochs/README.md.
set -euo pipefail
recipe=multi30k corpus="multi30k/prepare.sh PAIR"
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../lib.sh"
