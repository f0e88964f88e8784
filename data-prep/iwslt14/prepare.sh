#!/usr/bin/env bash
# IWSLT 2014, TED talks in German and English, see README.md here.
set -euo pipefail
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../corpus.sh"
