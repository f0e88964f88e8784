#!/usr/bin/env bash
# Annotated English Gigaword with the settings of Takase et al. 2018 (Table 10); test set of Zhou et al. 2017.
# Published F1 of ROUGE-1, -2 and -L, mean of three seeds:
#
#   system                          R-1     R-2     R-L
#   encdec                          46.77   24.87   43.58
#   mos    i_3 = 2                  46.91   24.91   43.73
#   doc    i_3 = i_2 = 2            46.99   25.29   43.83
#
# Run with seeds 1, 2 and 3; the three systems differ in their output layer only. Should doc lag behind from the first
# epochs, add --expert-warmup 1000, which is not in the paper (results/multi30k shows why).
set -euo pipefail

usage="usage: gigaword.sh {encdec|mos|doc} SEED DATA SAVE_DIR [fairseq-train flags]
  DATA      directory that data-prep/gigaword/prepare.sh wrote
  SAVE_DIR  directory for checkpoints and train.log; run again to resume
Then, with the beam of 20 of Kiyono et al. 2017 that the paper follows (5 without BEAM):
  BEAM=20 bash scripts/evaluate_rouge.sh DATA SAVE_DIR/checkpoint_best.pt test DATA/raw/test.title OUT
A length may be asked for: at most 8 subwords, or from 8 to 12 with a preference for longer ones:
  bash scripts/evaluate_rouge.sh DATA SAVE_DIR/checkpoint_best.pt test DATA/raw/test.title OUT -- --max-len-b 8
  bash scripts/evaluate_rouge.sh ... OUT -- --min-len 8 --max-len-b 12 --lenpen 2
and the 75 bytes of DUC 2004: bash scripts/evaluate_rouge.sh ... OUT --max-bytes 75"
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh" "$@"

case $system in
  encdec) arch=lstm_encdec_gigaword ;;
  mos) arch=lstm_encdec_mos_gigaword ;;
  doc) arch=lstm_encdec_doc_gigaword ;;
  *) refuse ;;
esac

train --task translation --arch "$arch" --criterion regularized_cross_entropy --batch-size 256 --max-epoch 15 \
  --optimizer adam --lr 0.001 --clip-norm 5 --lr-scheduler fixed --force-anneal 10 --lr-shrink 0.5
