#!/usr/bin/env bash
# A corpus of your own: text of any one or two languages, see README.md here.
set -euo pipefail
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../corpus.sh"
