#!/usr/bin/env bash
# WikiText-2, word level: 33,278 words with the end mark, see README.md here.
set -euo pipefail
# shellcheck source=data-prep/lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib.sh"

corpus=wikitext-2
archive_mirrors=(
  https://s3.amazonaws.com/research.metamind.io/wikitext
  https://wikitext.smerity.com
)

parse_options "$@"
begin
obtain_texts wikitext-2-v1.zip 'wikitext-2/wiki.*.tokens'

check_sha256 valid f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8
check_sha256 test d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0
# Blank lines are part of the corpus: each is one end mark.
check_counts train 2088628
check_counts valid 217646 3760
check_counts test 245569 4358

# Neither the end mark nor <unk> has a row: both are the host's own symbols.
binarise 33276
report lstm_lm_awd
