#!/usr/bin/env bash
# IWSLT 2016 with the settings of Takase et al. 2018.
set -euo pipefail
recipe=iwslt16 corpus="iwslt16/prepare.sh PAIR"
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../lib.sh"
