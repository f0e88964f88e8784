#!/usr/bin/env bash
# WMT 2014 German-English with the LSTMs of Shuang et al. 2020.
set -euo pipefail
recipe=wmt14_mmlstm corpus="wmt14/prepare.sh de-en --max-length 50"
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../lib.sh"
