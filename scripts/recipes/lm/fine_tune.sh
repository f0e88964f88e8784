#!/usr/bin/env bash
# Fine-tune a language model in rounds until validation stops improving. Same as python -m fairseq_plugins.cli.fine_tune.
set -euo pipefail

usage="usage: fine_tune.sh ARCH CHECKPOINT DATA SAVE_DIR [MAX_ROUNDS [fairseq-train flags]]
  ARCH        architecture of the checkpoint with a paper's preset, such as lstm_lm_doc_ptb
  CHECKPOINT  model to start from, such as SAVE_DIR/checkpoint_best.pt of its training
  DATA        directory that data-prep/<corpus>/prepare.sh wrote
  SAVE_DIR    gets round1, round2, ... and the best model as checkpoint_fin.pt; run again to resume
  MAX_ROUNDS  1 is the papers' single fine-tuning (default: until a round brings no gain)
Flags that shaped the model in its training, such as --hidden-sizes, must be given again. This is
  python -m fairseq_plugins.cli.fine_tune DATA --arch ARCH --path CHECKPOINT --save-dir SAVE_DIR --rounds MAX_ROUNDS"
[[ ${1:-} == --help ]] && { echo "$usage"; exit 0; }
[[ $# -ge 4 ]] || { echo "$usage" >&2; exit 2; }
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../../package.sh"
exec python -m fairseq_plugins.cli.fine_tune "$3" --arch "$1" --path "$2" --save-dir "$4" ${5:+--rounds "$5"} "${@:6}"
