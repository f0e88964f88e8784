#!/usr/bin/env bash
# Penn Treebank with models of 4M parameters, small enough for two CPU cores.
# Same data, updates, dropout and seed for the three output layers; results in results/ptb_reduced/README.md.
set -euo pipefail

usage="usage: ptb_reduced.sh {awd|mos|doc} SEED DATA SAVE_DIR [fairseq-train flags]
  DATA      directory that data-prep/ptb/prepare.sh wrote
  SAVE_DIR  directory for checkpoints and train.log; run again to resume"
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh" "$@"

case $system in
  awd) flags=(--arch lstm_lm_awd --embed-dim 150 --hidden-sizes "400 400 150") ;;
  mos) flags=(--arch lstm_lm_mos --embed-dim 100 --hidden-sizes "400 400 280" --experts-per-layer "0 0 0 4") ;;
  doc) flags=(--arch lstm_lm_doc --embed-dim 100 --hidden-sizes "400 400 280" --experts-per-layer "0 0 1 3"
              --balance 0.001) ;;
  *) refuse ;;
esac

train --task stateful_lm --tokens-per-sample 70 --window-lengths random \
  --batch-size 20 --batch-size-valid 10 "${flags[@]}" \
  --criterion regularized_cross_entropy --activation-regularization 2 --temporal-activation-regularization 1 \
  --optimizer nt_asgd --lr 20 --clip-norm 0.25 --weight-decay 1.2e-6 --nonmonotone-interval 5 --max-epoch 6
