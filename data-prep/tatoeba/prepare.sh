#!/usr/bin/env bash
# Tatoeba, short sentences in English and another language, see README.md here.
set -euo pipefail
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../corpus.sh"
