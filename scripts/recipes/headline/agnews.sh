#!/usr/bin/env bash
# AG News at a CPU budget: the same data, subwords, updates, widths and optimiser for every system.
# Results, beside baselines without a model, in results/agnews/README.md.
set -euo pipefail

usage="usage: agnews.sh {encdec|mos|doc} SEED DATA SAVE_DIR [fairseq-train flags]
  DATA      directory that data-prep/agnews/prepare.sh wrote
  SAVE_DIR  directory for checkpoints and train.log; run again to resume
Then: bash scripts/evaluate_rouge.sh DATA SAVE_DIR/checkpoint_best.pt test DATA/raw/test.title OUT"
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh" "$@"

case $system in
  encdec) arch=lstm_encdec ;;
  mos) arch=lstm_encdec_mos ;;
  doc) arch=lstm_encdec_doc ;;
  *) refuse ;;
esac

train --task translation --arch "$arch" --criterion regularized_cross_entropy --batch-size 16 --max-epoch 12 \
  --optimizer adam --lr 0.001 --clip-norm 5 --lr-scheduler fixed --force-anneal 9 --lr-shrink 0.5
