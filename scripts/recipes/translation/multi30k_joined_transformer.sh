#!/usr/bin/env bash
# Transformers as large as the encoder-decoders of multi30k_joined.sh, on the same data, until valid stops improving.
set -euo pipefail
recipe=multi30k_joined_transformer corpus="multi30k/prepare.sh PAIR --joined-dictionary"
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../lib.sh"
