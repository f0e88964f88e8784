#!/usr/bin/env bash
# Language models that rerank parses, of Takase et al. 2018, and the same at a CPU budget.
set -euo pipefail
case ${SAMPLE:-no} in
  yes) recipe=wsj_sample ;;
  no) recipe=wsj ;;
  *) echo "wsj.sh: error: SAMPLE=$SAMPLE: give yes or no" >&2; exit 2 ;;
esac
corpus="wsj/prepare.sh" environment="SAMPLE=yes for the systems of the sample of 3,253 trees"
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../lib.sh"
