#!/usr/bin/env bash
# Install, make small corpora, train models of language, translation and headlines with one softmax and with DOC, compare.
set -euo pipefail

usage="usage: bash scripts/demo.sh
  Writes results/demo (table.md, runs.json, learning_curves.png, translation.md, headlines.md); corpora and checkpoints go to
  demo-work. Takes up to ten minutes on two CPU cores. Run again: goes on where it was stopped."
case ${1:-} in
  "") ;;
  --help) echo "$usage"; exit 0 ;;
  *) echo "$usage" >&2; exit 2 ;;
esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
source .venv/bin/activate

show_progress() {  # of the log on standard input: a line an epoch
  awk '/[|] valid [|] epoch/ { match($0, /epoch [0-9]+/); epoch = substr($0, RSTART, RLENGTH)
         match($0, /ppl [0-9.]+/); print "   " epoch ": valid " substr($0, RSTART, RLENGTH); fflush() }'
}

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
    tee -a "$work/$name/train.log" | show_progress ||
    { tail -n 5 "$work/$name/train.log" >&2; exit 1; }
}
train awd --arch lstm_lm_awd --hidden-sizes "200 200 100"
train doc --arch lstm_lm_doc --hidden-sizes "200 200 150" --experts-per-layer "0 0 1 3" --balance 0.001

echo "== evaluate"
python scripts/summarize_runs.py "$data" "AWD-LSTM, tied softmax=$work/awd" "AWD-LSTM-DOC=$work/doc" --out results/demo

text=$work/parallel pairs=$work/data-bin.en-de
if [[ ! -d $pairs ]]; then
  echo "== bilingual corpus"
  python scripts/generate_parallel_corpus.py "$text"
  for split in train valid test; do
    for language in en de; do
      sacremoses -q -l "$language" tokenize < "$text/$split.$language" > "$text/$split.tok.$language"
    done
  done
  cat "$text/train.tok.en" "$text/train.tok.de" | subword-nmt learn-bpe -s 1500 > "$text/bpe.codes" 2> "$text/bpe.log"
  for split in train valid test; do
    for language in en de; do
      subword-nmt apply-bpe -c "$text/bpe.codes" < "$text/$split.tok.$language" > "$text/$split.bpe.$language"
    done
  done
  rm -rf "$pairs.part"
  fairseq-preprocess --source-lang en --target-lang de --workers 2 --destdir "$pairs.part" \
    --trainpref "$text/train.bpe" --validpref "$text/valid.bpe" --testpref "$text/test.bpe" \
    > "$text/preprocess.log" 2>&1 || { tail "$text/preprocess.log" >&2; exit 1; }
  mv "$pairs.part" "$pairs"
fi

train_pairs() {
  local name=$1 pairs=$2
  shift 2
  echo "== train $name (log: $work/$name/train.log)"
  mkdir -p "$work/$name"
  fairseq-train "$pairs" --user-dir fairseq_plugins --save-dir "$work/$name" --seed 1 --max-epoch 6 \
    --task translation --embed-dim 96 --hidden-sizes "96 96" --dropout 0.1 --init-range 0.3 --batch-size 32 --num-workers 0 \
    --criterion regularized_cross_entropy --optimizer adam --lr 0.003 --clip-norm 5 \
    --lr-scheduler fixed --force-anneal 5 --lr-shrink 0.5 \
    --no-epoch-checkpoints --log-format simple --log-interval 50 "$@" 2>&1 |
    tee -a "$work/$name/train.log" | show_progress ||
    { tail -n 5 "$work/$name/train.log" >&2; exit 1; }
}
train_pairs encdec "$pairs" --arch lstm_encdec
train_pairs encdec_doc "$pairs" --arch lstm_encdec_doc --expert-warmup 200

echo "== BLEU"
bleu() {
  bash scripts/evaluate_bleu.sh "$pairs" "$work/$1/checkpoint_best.pt" test "$text/test.de" "$work/$1/test" "${@:2}"
}
{
  printf 'Translation of 300 generated sentences, `bash scripts/demo.sh`.\n\n`lstm_encdec`\n\n```\n'
  bleu encdec
  printf '```\n\n`lstm_encdec_doc`\n\n```\n'
  bleu encdec_doc --against "$work/encdec/test"
  printf '```\n\n'
  python scripts/provenance.py
} > "$work/translation.md"
mv "$work/translation.md" results/demo/translation.md
cat results/demo/translation.md

headlines=$work/data-bin.headlines
if [[ ! -d $headlines ]]; then
  echo "== headline corpus"
  python scripts/generate_headline_corpus.py "$work/headlines"
  EXPECTED_COUNTS=skip bash data-prep/gigaword/prepare.sh --from "$work/headlines" --work "$work/headlines" \
    --dest "$headlines" --merges 800 > "$work/headlines/prepare.log" 2>&1 ||
    { tail -n 5 "$work/headlines/prepare.log" >&2; exit 1; }
fi
train_pairs headlines_encdec "$headlines" --arch lstm_encdec
train_pairs headlines_doc "$headlines" --arch lstm_encdec_doc --expert-warmup 200

echo "== ROUGE"
rouge() {
  bash scripts/evaluate_rouge.sh "$headlines" "$work/$1/checkpoint_best.pt" test "$headlines/raw/test.title" "$work/$1/test"
}
{
  printf 'Headlines of 300 generated news sentences, `bash scripts/demo.sh`.\n\n`lstm_encdec`\n\n```\n'
  rouge headlines_encdec
  printf '```\n\n`lstm_encdec_doc`\n\n```\n'
  rouge headlines_doc
  printf '```\n\n'
  python scripts/provenance.py
} > "$work/headlines.md"
mv "$work/headlines.md" results/demo/headlines.md
cat results/demo/headlines.md
