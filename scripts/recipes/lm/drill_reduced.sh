#!/usr/bin/env bash
# The output layers of Pappas & Henderson 2019, table 4, on Penn Treebank with a network small enough for two CPU cores.
# Same data, updates, dropout and seed for all; results in results/drill_reduced/README.md.
set -euo pipefail

usage="usage: drill_reduced.sh {full|tied|bilinear|dual|drill0..drill4|standard} SEED DATA SAVE_DIR [fairseq-train flags]
  drillK    DRILL of depth K, variational label dropout; standard: depth 4 with a mask for each label
  DATA      directory that data-prep/ptb/prepare.sh wrote
  SAVE_DIR  directory for checkpoints and train.log; run again to resume"
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh" "$@"

case $system in
  full | tied) flags=(--output-layer "$system") ;;
  bilinear | dual) flags=(--output-layer "$system" --label-dropout 0.3) ;;
  drill[0-4]) flags=(--output-layer drill --label-depth "${system#drill}" --label-dropout 0.3) ;;
  standard) flags=(--output-layer drill --label-depth 4 --label-dropout 0.3 --label-mask standard) ;;
  *) refuse ;;
esac

train --task stateful_lm --tokens-per-sample 70 --window-lengths random --batch-size 20 --batch-size-valid 10 \
  --arch lstm_lm_awd --embed-dim 150 --hidden-sizes "400 400 150" "${flags[@]}" \
  --criterion regularized_cross_entropy --activation-regularization 2 --temporal-activation-regularization 1 \
  --optimizer nt_asgd --lr 20 --clip-norm 0.25 --weight-decay 1.2e-6 --nonmonotone-interval 5 --max-epoch 6
