#!/usr/bin/env bash
# Impulse-response and rectifier networks of Pachitariu & Sahani 2013, Penn Treebank.
set -euo pipefail
recipe=fpnn_ptb corpus="ptb/prepare.sh"
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
