#!/usr/bin/env bash
# Impulse-response, rectifier and skipping networks of Pachitariu & Sahani 2013.
set -euo pipefail
recipe=fpnn_${CORPUS:-ptb} corpus="{ptb/prepare.sh, text8/prepare.sh, text8/prepare.sh --level char}"
environment="CORPUS=ptb (default), text8 or text8_chars, whose settings are taken"
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../lib.sh"
