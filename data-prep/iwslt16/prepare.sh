#!/usr/bin/env bash
# IWSLT 2016, TED talks: English with German or French, either direction, see README.md here.
set -euo pipefail
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../corpus.sh"
