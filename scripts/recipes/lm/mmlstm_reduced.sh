#!/usr/bin/env bash
# Major-Minor LSTM (Shuang et al. 2020) on Penn Treebank with networks small enough for two CPU cores: 4M parameters in
# each of the two groups, the same data, updates and dropout for all.
set -euo pipefail

usage="usage: mmlstm_reduced.sh {10:0|9:1|7:3|5:5|mos|mmlstm-mos|mmlstm-doc} SEED DATA SAVE_DIR [fairseq-train flags]
  N:M       tied softmax, majors and minors of that ratio; 10:0 is the plain LSTM
  mos       four experts on the last layer, on plain LSTMs or on Major-Minor LSTMs (ratios 9:1, 9:1, 6:4)
  doc       three experts on the last layer, one on the layer below, with the balance term
  DATA      directory that data-prep/ptb/prepare.sh wrote
  SAVE_DIR  directory for checkpoints and train.log; run again to resume"
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh" "$@"

tied=(--arch mmlstm_lm --embed-dim 150)
mixture=(--arch mmlstm_lm_mos --embed-dim 100)
case $system in
  10:0) flags=("${tied[@]}" --rnn-cell lstm --hidden-sizes "400 400 150") ;;
  9:1) flags=("${tied[@]}" --major-proportions 0.9 --hidden-sizes "431 431 150") ;;
  7:3) flags=("${tied[@]}" --major-proportions 0.7 --hidden-sizes "494 494 150") ;;
  5:5) flags=("${tied[@]}" --major-proportions 0.5 --hidden-sizes "540 540 150") ;;
  mos) flags=("${mixture[@]}" --rnn-cell lstm --hidden-sizes "400 400 280" --experts-per-layer "0 0 0 4") ;;
  mmlstm-mos) flags=("${mixture[@]}" --hidden-sizes "457 457 280" --experts-per-layer "0 0 0 4") ;;
  mmlstm-doc) flags=("${mixture[@]}" --output-layer doc --hidden-sizes "457 457 280" --experts-per-layer "0 0 1 3"
                     --latent-dropout 0.2 --balance 0.001) ;;
  *) refuse ;;
esac

train --task stateful_lm --tokens-per-sample 70 --window-lengths random --batch-size 20 --batch-size-valid 10 \
  "${flags[@]}" \
  --criterion regularized_cross_entropy --activation-regularization 2 --temporal-activation-regularization 1 \
  --optimizer nt_asgd --lr 20 --clip-norm 0.25 --weight-decay 1.2e-6 --nonmonotone-interval 5 --max-epoch 6
