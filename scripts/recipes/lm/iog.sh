#!/usr/bin/env bash
# Input-to-Output Gate and its base models, of Takase et al. 2017; a gate needs --base-model CKPT after SAVE_DIR.
set -euo pipefail
recipe=iog_${CORPUS:-ptb} corpus="{ptb,wikitext-2}/prepare.sh" environment="CORPUS=ptb (default) or wt2, whose settings are taken"
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../lib.sh"
