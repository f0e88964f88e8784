#!/usr/bin/env bash
# WikiText-2, word level: 33,278 words with the end mark, see README.md here.
set -euo pipefail
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../corpus.sh"
