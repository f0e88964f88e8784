#!/usr/bin/env bash
# Penn Treebank in Mikolov's word-level form: 10,000 words, see README.md here.
set -euo pipefail
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../corpus.sh"
