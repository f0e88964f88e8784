#!/usr/bin/env bash
# Install, make a small corpus, train a tied-softmax AWD-LSTM and a DOC language model, and compare them.
set -euo pipefail

if [[ ${1:-} == --help ]]; then
  echo "usage: bash scripts/demo.sh
  Writes results/demo (table.md, runs.json, learning_curves.png); corpus and checkpoints go to demo-work.
  Takes up to six minutes on two CPU cores. Run again: goes on where it was stopped."
  exit 0
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
source .venv/bin/activate

work=demo-work data=demo-work/data-bin
if [[ ! -d $data ]]; then
  echo "== corpus"
  python scripts/generate_corpus.py "$work/text"
  rm -rf "$data.part"
  fairseq-preprocess --only-source --padding-factor 1 --workers 2 --destdir "$data.part" \
    --trainpref "$work/text/train.txt" --validpref "$work/text/valid.txt" --testpref "$work/text/test.txt" \
    > "$work/preprocess.log" 2>&1 || { tail "$work/preprocess.log" >&2; exit 1; }
  mv "$data.part" "$data"
fi

train() {
  local name=$1
  shift
  echo "== train $name (log: $work/$name/train.log)"
  mkdir -p "$work/$name"
  fairseq-train "$data" --user-dir fairseq_plugins --save-dir "$work/$name" --seed 1 --max-epoch 10 \
    --task stateful_lm --tokens-per-sample 35 --batch-size 20 --batch-size-valid 10 \
    --embed-dim 100 --dropout-embedding 0 \
    --criterion regularized_cross_entropy --activation-regularization 2 --temporal-activation-regularization 1 \
    --optimizer nt_asgd --lr 20 --clip-norm 0.25 --force-anneal 8 --lr-shrink 0.3 \
    --no-epoch-checkpoints --log-format simple --log-interval 25 "$@" 2>&1 |
    tee -a "$work/$name/train.log" |
    awk '/[|] valid [|] epoch/ { match($0, /epoch [0-9]+/); epoch = substr($0, RSTART, RLENGTH)
           match($0, /ppl [0-9.]+/); print "   " epoch ": valid " substr($0, RSTART, RLENGTH); fflush() }' ||
    { tail -n 5 "$work/$name/train.log" >&2; exit 1; }
}
train awd --arch lstm_lm_awd --hidden-sizes "200 200 100"
train doc --arch lstm_lm_doc --hidden-sizes "200 200 150" --experts-per-layer "0 0 1 3" --balance 0.001

echo "== evaluate"
python scripts/summarize_runs.py "$data" "AWD-LSTM, tied softmax=$work/awd" "AWD-LSTM-DOC=$work/doc" --out results/demo
