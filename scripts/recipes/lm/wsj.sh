#!/usr/bin/env bash
# Language models that rerank parses, of Takase et al. 2018, and the same at a CPU budget.
set -euo pipefail
recipe=wsj${SAMPLE:+_sample} corpus="wsj/prepare.sh" environment="SAMPLE=yes for the systems of the sample of 3,253 trees"
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
