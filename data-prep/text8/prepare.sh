#!/usr/bin/env bash
# text8, by words or by characters, split 90M/5M/5M characters, see README.md here.
set -euo pipefail
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../corpus.sh"
