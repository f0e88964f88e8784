#!/usr/bin/env bash
# Output layers of Pappas & Henderson 2019.
set -euo pipefail
recipe=drill_${CORPUS:-ptb} corpus="{ptb,wikitext-2}/prepare.sh" environment="CORPUS=ptb (default) or wt2, whose settings are taken"
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../lib.sh"
