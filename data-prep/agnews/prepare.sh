#!/usr/bin/env bash
# AG News, descriptions and headlines, see README.md here.
set -euo pipefail
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../corpus.sh"
