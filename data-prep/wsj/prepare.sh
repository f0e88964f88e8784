#!/usr/bin/env bash
# Trees of the Wall Street Journal, linearised for reranking, see README.md here.
set -euo pipefail
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../corpus.sh"
