#!/usr/bin/env bash
# WMT 2014 English-German with the Transformers of Pappas & Henderson 2019.
set -euo pipefail
recipe=wmt14_transformer corpus="wmt14/prepare.sh en-de"
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../lib.sh"
