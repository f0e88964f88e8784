#!/usr/bin/env bash
# AG News at a CPU budget: the same data, subwords, updates, widths and optimiser for every system. With 5,800 pairs the
# models are small, much is dropped, and one embedding serves source, target and output, so that names can be copied.
# The architecture of doc brings --expert-warmup 1000, which is not in the paper. Results, beside baselines without a model, in results/agnews/README.md.
set -euo pipefail

usage="usage: agnews.sh {encdec|mos|doc} SEED DATA SAVE_DIR [fairseq-train flags]
  DATA      directory that data-prep/agnews/prepare.sh --joined-dictionary wrote
  SAVE_DIR  directory for checkpoints and train.log; run again to resume
Then: bash scripts/evaluate_rouge.sh DATA SAVE_DIR/checkpoint_best.pt test DATA/raw/test.title OUT"
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh" "$@"

case $system in
  encdec) flags=(--arch lstm_encdec --output-layer tied) ;;
  mos) flags=(--arch lstm_encdec_mos --latent-dropout 0.4) ;;
  doc) flags=(--arch lstm_encdec_doc --latent-dropout 0.4) ;;
  *) refuse ;;
esac

train --task translation "${flags[@]}" --share-embeddings all --criterion regularized_cross_entropy \
  --embed-dim 128 --hidden-sizes "128 128" --init-range 0.2 --dropout 0.5 --batch-size 32 --max-epoch 14 \
  --optimizer adam --lr 0.003 --clip-norm 5 --lr-scheduler fixed --force-anneal 11 --lr-shrink 0.5
