#!/usr/bin/env bash
# Multi30k at a CPU budget: the same data, subwords, updates, widths and optimiser for every system.
# The architecture of doc brings --expert-warmup 1000, which is not in the paper. Results in results/multi30k/README.md.
set -euo pipefail

usage="usage: multi30k.sh {host|encdec|encdec-nofeed|mos|doc|mmlstm} SEED DATA SAVE_DIR [fairseq-train flags]
  host      fairseq's own lstm; encdec, mos, doc: lstm_encdec with one softmax, MoS (two experts) or DOC (two and two)
  mmlstm    mmlstm_encdec with about as many parameters as encdec
  DATA      directory that data-prep/multi30k/prepare.sh wrote
  SAVE_DIR  directory for checkpoints and train.log; run again to resume"
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh" "$@"

case $system in
  host) flags=(--arch lstm --criterion cross_entropy --dropout 0.3
               --encoder-bidirectional --encoder-layers 2 --encoder-embed-dim 256 --encoder-hidden-size 256
               --decoder-layers 2 --decoder-embed-dim 256 --decoder-hidden-size 256 --decoder-out-embed-dim 256) ;;
  encdec) flags=(--arch lstm_encdec) ;;
  encdec-nofeed) flags=(--arch lstm_encdec --input-feeding off) ;;
  mos) flags=(--arch lstm_encdec_mos) ;;
  doc) flags=(--arch lstm_encdec_doc) ;;
  mmlstm) flags=(--arch mmlstm_encdec --hidden-sizes "273 273") ;;
  *) refuse ;;
esac
[[ $system == host ]] || flags+=(--criterion regularized_cross_entropy)

train --task translation "${flags[@]}" --batch-size 64 --max-epoch 5 \
  --optimizer adam --lr 0.001 --clip-norm 5 --lr-scheduler fixed --force-anneal 4 --lr-shrink 0.5
