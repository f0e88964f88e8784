#!/usr/bin/env bash
# WMT 2014, English with German, either direction, see README.md here.
set -euo pipefail
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../corpus.sh"
