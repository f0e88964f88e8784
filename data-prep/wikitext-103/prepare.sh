#!/usr/bin/env bash
# WikiText-103, word level: 267,735 words with the end mark, see README.md here.
set -euo pipefail
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../corpus.sh"
