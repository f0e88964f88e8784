#!/usr/bin/env bash
# Small encoder-decoders of equal size on Tatoeba, with one dictionary, and as many updates for all.
set -euo pipefail
recipe=tatoeba corpus="tatoeba/prepare.sh PAIR --joined-dictionary"
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../lib.sh"
