#!/usr/bin/env bash
# Transformers with each output layer on Multi30k at a CPU budget: the same data, subwords, updates, widths and optimiser.
# Results in results/multi30k_transformer/README.md.
set -euo pipefail

usage="usage: multi30k_transformer.sh {host|tied|bilinear|dual|drill|mos|doc} SEED DATA SAVE_DIR [fairseq-train flags]
  host      fairseq's own transformer with the same sizes and a tied softmax
  DATA      directory that data-prep/multi30k/prepare.sh wrote
  SAVE_DIR  directory for checkpoints and train.log; run again to resume"
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh" "$@"

case $system in
  host) flags=(--arch transformer --criterion label_smoothed_cross_entropy --dropout 0.2
               --encoder-layers 3 --encoder-embed-dim 256 --encoder-ffn-embed-dim 1024 --encoder-attention-heads 4
               --decoder-layers 3 --decoder-embed-dim 256 --decoder-ffn-embed-dim 1024 --decoder-attention-heads 4) ;;
  tied) flags=(--arch transformer_full) ;;
  bilinear | dual | drill | mos | doc) flags=(--arch "transformer_$system") ;;
  *) refuse ;;
esac
[[ $system == host ]] || flags+=(--criterion regularized_cross_entropy)

train --task translation "${flags[@]}" --share-decoder-input-output-embed --label-smoothing 0.1 \
  --batch-size 64 --max-epoch 5 \
  --optimizer adam --adam-betas "(0.9, 0.98)" --lr 0.001 --lr-scheduler inverse_sqrt --warmup-updates 1000 --clip-norm 1
