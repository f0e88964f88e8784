#!/usr/bin/env bash
# Annotated English Gigaword, articles and titles, see README.md here.
set -euo pipefail
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../corpus.sh"
