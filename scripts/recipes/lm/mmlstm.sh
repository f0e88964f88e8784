#!/usr/bin/env bash
# Language models of Shuang et al. 2020 (Major-Minor LSTM).
set -euo pipefail
recipe=mmlstm_${CORPUS:-ptb} corpus="{ptb,wikitext-2,wikitext-103}/prepare.sh" environment="CORPUS=ptb (default), wt2 or wt103, whose settings are taken"
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../lib.sh"
