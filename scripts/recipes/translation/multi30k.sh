#!/usr/bin/env bash
# Multi30k at a CPU budget: the same data, subwords, updates, widths and optimiser for every system.
# The architecture of doc brings --expert-warmup 1000, which is not in the paper. Results in results/multi30k/README.md.
set -euo pipefail

usage="usage: multi30k.sh {host|encdec|encdec-nofeed|mos|doc} SEED DATA SAVE_DIR [fairseq-train flags]
  host      fairseq's own lstm; the others are lstm_encdec with one softmax, MoS (two experts) or DOC (two and two)
  DATA      directory that data-prep/multi30k/prepare.sh wrote
  SAVE_DIR  directory for checkpoints and train.log; run again to resume"
[[ ${1:-} == --help ]] && { echo "$usage"; exit 0; }
[[ $# -ge 4 ]] || { echo "$usage" >&2; exit 2; }
system=$1 seed=$2 data=$3 save_dir=$4
shift 4

case $system in
  host) flags=(--arch lstm --criterion cross_entropy --dropout 0.3
               --encoder-bidirectional --encoder-layers 2 --encoder-embed-dim 256 --encoder-hidden-size 256
               --decoder-layers 2 --decoder-embed-dim 256 --decoder-hidden-size 256 --decoder-out-embed-dim 256) ;;
  encdec) flags=(--arch lstm_encdec) ;;
  encdec-nofeed) flags=(--arch lstm_encdec --input-feeding off) ;;
  mos) flags=(--arch lstm_encdec_mos) ;;
  doc) flags=(--arch lstm_encdec_doc) ;;
  *) echo "$usage" >&2; exit 2 ;;
esac
[[ $system == host ]] || flags+=(--criterion regularized_cross_entropy)

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
mkdir -p "$save_dir"
fairseq-train "$data" --user-dir "$root/fairseq_plugins" --save-dir "$save_dir" --seed "$seed" \
  --task translation "${flags[@]}" --batch-size 64 --num-workers 0 --distributed-world-size 1 \
  --optimizer adam --lr 0.001 --clip-norm 5 --lr-scheduler fixed --force-anneal 4 --lr-shrink 0.5 \
  --max-epoch 5 --no-epoch-checkpoints --log-format simple --log-interval 50 "$@" \
  2>&1 | tee -a "$save_dir/train.log"
