#!/usr/bin/env bash
# Small encoder-decoders of equal size on a part of IWSLT 2014, with one dictionary, and as many updates for all.
set -euo pipefail
recipe=iwslt14_partial corpus="iwslt14/prepare.sh PAIR --partial --joined-dictionary"
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../lib.sh"
