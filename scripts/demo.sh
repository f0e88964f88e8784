#!/usr/bin/env bash
# Install, train language models and translators with one softmax and with DOC on short sentences, compare, translate.
set -euo pipefail

usage="usage: bash scripts/demo.sh
  On 14,000 German-English sentence pairs of Tatoeba (fairseq_plugins/demo_corpus), without a download:
    language models of the English side: AWD-LSTM with a tied softmax and with DOC, perplexity
    translators: lstm_encdec with one softmax and with DOC, BLEU; the better one translates three sentences
  Writes results/demo (table.md, runs.json, translation.md, pictures); text, checkpoints and logs go to demo-work.
  Takes at most six minutes on two CPU cores. Run again: goes on where it was stopped.
  Headlines need a corpus that cannot be shipped: see data-prep/agnews/README.md."
case ${1:-} in
  "") ;;
  --help) echo "$usage"; exit 0 ;;
  *) echo "$usage" >&2; exit 2 ;;
esac

# what the time depends on; the rate falls for the last two epochs of a language model, the last one of a translator
lm_epochs=10
translation_epochs=6

cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
source .venv/bin/activate
export OMP_NUM_THREADS=1  # two trainings at a time, a core each
corpus=fairseq_plugins/demo_corpus work=demo-work out=results/demo
mkdir -p "$work" "$out"
set -m  # what runs in the background is a group of processes, and ends with this script
trap 'for job in $(jobs -p); do kill -- "-$job" 2> /dev/null || true; done' EXIT

finish() {  # wait for what runs in the background; a failure there is one here
  local job
  for job in $(jobs -p); do wait "$job"; done
}

logged() {  # LOG COMMAND...: its output goes to the log, the end of it to the reader if it fails
  local log=$1
  shift
  "$@" > "$log" 2>&1 || { tail -n 5 "$log" >&2; return 1; }
}

show_progress() {  # NAME: of the log on standard input, a line an epoch
  sed --unbuffered -n "s/.*| valid | epoch 0*\([0-9]*\) |.*| ppl \([0-9.]*\) .*/   $1  epoch \1  valid perplexity \2/p"
}

train() {  # ARCH DATA FLAGS...: to demo-work/ARCH
  local name=$1 data=$2 folder=$work/$1
  shift 2
  local command=(fairseq-train "$data" --user-dir fairseq_plugins --arch "$name" --save-dir "$folder" --seed 1
                 --num-workers 0 --criterion regularized_cross_entropy --no-epoch-checkpoints
                 --log-format simple --log-interval 25 "$@")
  [[ -f $folder/finished.txt && $(<"$folder/finished.txt") == "${command[*]}" ]] && return
  mkdir -p "$folder"
  "${command[@]}" 2>&1 | tee -a "$folder/train.log" | show_progress "$name" ||
    { tail -n 5 "$folder/train.log" >&2; return 1; }
  echo "${command[*]}" > "$folder/finished.txt"
}

echo "== prepare the corpus"
logged "$work/prepare.lm.log" bash data-prep/tatoeba/prepare.sh en --from "$corpus" --dest "$work/data-bin.lm" \
  --work "$work/text.lm" &
logged "$work/prepare.pairs.log" bash data-prep/tatoeba/prepare.sh de-en --from "$corpus" --merges 1500 \
  --dest "$work/data-bin.pairs" --work "$work/text.pairs" &
finish

echo "== train language models (logs: $work/lstm_lm_*/train.log)"
train_lm() {
  train "$1" "$work/data-bin.lm" --task stateful_lm --tokens-per-sample 35 --batch-size 20 --batch-size-valid 10 \
    --embed-dim 128 --activation-regularization 2 --temporal-activation-regularization 1 \
    --optimizer nt_asgd --lr 20 --clip-norm 0.25 \
    --max-epoch "$lm_epochs" --force-anneal $((lm_epochs - 2)) --lr-shrink 0.3 "${@:2}"
}
train_lm lstm_lm_awd --hidden-sizes "256 256 128" &
train_lm lstm_lm_doc --hidden-sizes "244 244 128" --experts-per-layer "0 0 1 3" --balance 0.001 &
finish

echo "== train translators (logs: $work/lstm_encdec*/train.log)"
train_translator() {
  train "$1" "$work/data-bin.pairs" --task translation --embed-dim 128 --hidden-sizes 160 --init-range 0.2 \
    --dropout 0.3 --batch-size 64 --optimizer adam --lr 0.004 --clip-norm 5 --lr-scheduler fixed \
    --max-epoch "$translation_epochs" --force-anneal $((translation_epochs - 1)) --lr-shrink 0.5 "${@:2}"
}
train_translator lstm_encdec &
train_translator lstm_encdec_doc --experts-per-layer "0 2 2" --expert-warmup 300 &
finish

echo "== evaluate"
decode() {  # SAVE_DIR: the test set
  logged "$1/decode.log" bash scripts/generate_split.sh "$work/data-bin.pairs" --path "$1/checkpoint_best.pt" \
    --out "$1/test" -- --cpu
}
compare() {  # DATA OUT --metric METRIC --path RUNS...
  logged "$2.log" python -m fairseq_plugins.cli.compare_runs "$1" --out "$2" --cpu "${@:3}"
}
decode "$work/lstm_encdec" &
decode "$work/lstm_encdec_doc" &
finish
compare "$work/data-bin.lm" "$work/compared.lm" --metric perplexity \
  --path "AWD-LSTM, tied softmax=$work/lstm_lm_awd" "AWD-LSTM-DOC=$work/lstm_lm_doc" &
compare "$work/data-bin.pairs" "$work/compared.pairs" --metric bleu \
  --path "lstm_encdec=$work/lstm_encdec" "lstm_encdec_doc=$work/lstm_encdec_doc" &
finish
python -m fairseq_plugins.cli.evaluate_translation --input "$work/lstm_encdec_doc/test/generate.txt" \
  --reference "$work/data-bin.pairs/raw/test.en" --against "$work/lstm_encdec/test" > "$work/scores.txt"
cat "$work/compared.lm/table.md" "$work/compared.pairs/table.md"

# BLEU against the baseline: <of DOC> and <of one softmax>, p = ...
best=$(awk '/^BLEU against/ { print ($5 + 0 > $7 + 0 ? "lstm_encdec_doc" : "lstm_encdec") }' "$work/scores.txt")
cat > "$work/sentences.de" << 'END'
Ich möchte morgen mit dir nach Boston gehen.
Warum hast du mir das Buch nicht gegeben?
Tom sagt, dass er heute nicht kommen kann.
END
echo "== translate three sentences by $best"
python -m fairseq_plugins.cli.translate "$work/data-bin.pairs" --path "$work/$best/checkpoint_best.pt" --cpu \
  --input "$work/sentences.de" --plot "$work/attention.png" > "$work/sentences.en"
paste "$work/sentences.de" "$work/sentences.en" | awk -F '\t' '{ print "   " $1 "\n   -> " $2 }'

{
  printf 'Translation from German into English, 1,000 sentences, `bash scripts/demo.sh`.\n\n'
  cat "$work/compared.pairs/table.md"
  printf '\n`lstm_encdec_doc` against `lstm_encdec`:\n\n```\n'
  grep "against the baseline" "$work/scores.txt"
  printf '```\n\nSentences that are not in the corpus, by `%s`; the map shows its attention in the first one.\n\n' "$best"
  printf '| German | English |\n|---|---|\n'
  paste "$work/sentences.de" "$work/sentences.en" | awk -F '\t' '{ print "| " $1 " | " $2 " |" }'
  printf '\n![Learning curves](translation_curves.png)\n\n![Attention map](attention.png)\n'
} > "$work/translation.md"
publish() {  # FILE NAME: to results/demo, whole or not at all
  cp "$1" "$out/.$2"
  mv "$out/.$2" "$out/$2"
}
publish "$work/compared.lm/table.md" table.md
publish "$work/compared.lm/runs.json" runs.json
publish "$work/compared.lm/learning_curves.png" learning_curves.png
publish "$work/compared.pairs/learning_curves.png" translation_curves.png
publish "$work/attention.png" attention.png
publish "$work/translation.md" translation.md
echo "written to $out: table.md, translation.md and pictures"
