#!/usr/bin/env bash
# Reuters-21578, first sentences and titles, see README.md here.
set -euo pipefail
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../corpus.sh"
