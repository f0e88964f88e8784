#!/usr/bin/env bash
# WikiText-103, word level: 267,735 words with the end mark, see README.md here.
set -euo pipefail
# shellcheck source=data-prep/lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib.sh"

corpus=wikitext-103
archive_mirrors=(
  https://s3.amazonaws.com/research.metamind.io/wikitext
  https://wikitext.smerity.com
)

parse_options "$@"
begin
obtain_texts wikitext-103-v1.zip 'wikitext-103/wiki.*.tokens'

# Blank lines are part of the corpus: each is one end mark.
check_counts train 103227021
check_counts valid 217646 3760
check_counts test 245569 4358

# Neither the end mark nor <unk> has a row: both are the host's own symbols.
binarise 267733
report lstm_lm_awd
