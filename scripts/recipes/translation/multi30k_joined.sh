#!/usr/bin/env bash
# Small encoder-decoders of equal size on Multi30k, with one dictionary, and as many updates for all.
set -euo pipefail
recipe=multi30k_joined corpus="multi30k/prepare.sh PAIR --joined-dictionary"
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../lib.sh"
