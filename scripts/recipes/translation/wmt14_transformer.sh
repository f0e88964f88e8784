#!/usr/bin/env bash
# WMT 2014 English-German with the Transformer base of Pappas & Henderson 2019, table 5: 350,000 updates of two batches of
# 4,096 tokens on one GPU, the embedding of the decoder shared with the output layer. Published tokenised BLEU on
# newstest2014, inferred from the text since the table is an image:
#
#   full    27.3    dual    27.5    drill   28.1 (depth 2, 0.53M parameters more)
#
# The paper names a label dropout of 0.6, its published command 0, which is taken here.
set -euo pipefail

usage="usage: wmt14_transformer.sh {full|dual|drill|bilinear|mos|doc} SEED DATA SAVE_DIR [fairseq-train flags]
  DATA      directory that data-prep/wmt14/prepare.sh en-de wrote
  SAVE_DIR  directory for checkpoints and train.log; run again to resume
Then: BEAM=4 bash scripts/evaluate_bleu.sh DATA SAVE_DIR/checkpoint_best.pt test DATA/raw/test.de OUT -- --lenpen 0.6"
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh" "$@"

case $system in
  full | dual | drill | bilinear | mos | doc) arch=transformer_${system}_wmt14 ;;
  *) refuse ;;
esac

# the rate of Noam's schedule with factor 2 at its peak, 2 / sqrt(512 x 8000)
train --task translation --arch "$arch" --share-decoder-input-output-embed \
  --criterion regularized_cross_entropy --label-smoothing 0.1 --max-tokens 4096 --update-freq 2 --max-update 350000 \
  --optimizer adam --adam-betas "(0.9, 0.998)" --lr 0.00098821 --lr-scheduler inverse_sqrt --warmup-updates 8000 \
  --warmup-init-lr 0
