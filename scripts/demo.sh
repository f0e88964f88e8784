#!/usr/bin/env bash
# Install, train language models and translators with one softmax and with DOC on short sentences, compare, translate.
set -euo pipefail

usage="usage: bash scripts/demo.sh
  On 14,000 German-English sentence pairs of Tatoeba (fairseq_plugins/demo_corpus), without a download:
    language models of the English side: AWD-LSTM with a tied softmax and with DOC, perplexity
    translators: lstm_encdec with one softmax and with DOC, BLEU; the better one translates three sentences
  Writes demo-work/results (table.md, runs.json, translation.md, pictures); the rest of demo-work is text, checkpoints, logs.
  Takes six minutes on two CPU cores, eight where these have AVX2 and no AVX-512. Run it again to resume.
  Headlines need a corpus that cannot be shipped: see data-prep/agnews/README.md."
case ${1:-} in
  "") ;;
  --help) echo "$usage"; exit 0 ;;
  *) echo "$usage" >&2; exit 2 ;;
esac

CDPATH= cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
bash scripts/setup.sh
source .venv/bin/activate
export OMP_NUM_THREADS=1  # two runs at a time, a core each
corpus=fairseq_plugins/demo_corpus work=demo-work out=demo-work/results
mkdir -p "$work" "$out"
set -m  # what runs in the background is a group of processes, and ends with this script
trap 'for job in $(jobs -p); do kill -- "-$job" 2> /dev/null || true; done' EXIT

started=()
start() {  # COMMAND...: in the background
  "$@" &
  started+=("$!")
}

finish() {  # wait for what was started; a failure there is one here
  local job
  for job in "${started[@]}"; do wait "$job"; done
  started=()
}

logged() {  # LOG COMMAND...: its output goes to the log, the end of it to the reader if it fails
  local log=$1
  shift
  "$@" > "$log" 2>&1 || { tail -n 5 "$log" >&2; return 1; }
}

show_progress() {  # NAME: of the log on standard input, a line an epoch
  sed --unbuffered -n "s/.*| valid | epoch 0*\([0-9]*\) |.*| ppl \([^ ]*\) .*/   $1  epoch \1  valid perplexity \2/p"
}

train() {  # RECIPE SYSTEM DATA: to demo-work/SYSTEM
  local folder=$work/$2
  python -m fairseq_plugins train "$1" "$2" "$3" --save-dir "$folder" | show_progress "$2" ||
    { tail -n 5 "$folder/train.log" >&2; return 1; }
}

echo "== prepare the corpus"
start logged "$work/prepare.lm.log" bash data-prep/tatoeba/prepare.sh en --from "$corpus" --dest "$work/data-bin.lm" \
  --work "$work/text.lm"
start logged "$work/prepare.pairs.log" bash data-prep/tatoeba/prepare.sh de-en --from "$corpus" --merges 1500 \
  --dest "$work/data-bin.pairs" --work "$work/text.pairs"
finish

echo "== train language models (logs: $work/lstm_lm_*/train.log)"
start train demo_lm lstm_lm_awd "$work/data-bin.lm"
start train demo_lm lstm_lm_doc "$work/data-bin.lm"
finish

echo "== train translators (logs: $work/lstm_encdec*/train.log)"
start train demo_translation lstm_encdec "$work/data-bin.pairs"
start train demo_translation lstm_encdec_doc "$work/data-bin.pairs"
finish

echo "== evaluate"
decode() {  # SAVE_DIR: the test set
  logged "$1/decode.log" python -m fairseq_plugins decode "$work/data-bin.pairs" --path "$1/checkpoint_best.pt" \
    --out "$1/test" --cpu
}
compare() {  # DATA OUT --metric METRIC --path RUNS...
  logged "$2.log" python -m fairseq_plugins compare runs "$1" --out "$2" --cpu "${@:3}"
}
start decode "$work/lstm_encdec"
start decode "$work/lstm_encdec_doc"
finish
start compare "$work/data-bin.lm" "$work/compared.lm" --metric perplexity \
  --path "AWD-LSTM, tied softmax=$work/lstm_lm_awd" "AWD-LSTM-DOC=$work/lstm_lm_doc"
start compare "$work/data-bin.pairs" "$work/compared.pairs" --metric bleu \
  --path "lstm_encdec=$work/lstm_encdec" "lstm_encdec_doc=$work/lstm_encdec_doc"
finish
python -m fairseq_plugins evaluate bleu --input "$work/lstm_encdec_doc/test/generate.txt" \
  --reference "$work/data-bin.pairs/raw/test.en" --against "$work/lstm_encdec/test" | grep 'against the baseline' > "$work/against.txt"
cat "$work/compared.lm/table.md" "$work/compared.pairs/table.md"

# BLEU against the baseline: 55.38 and 53.66, p = ...
best=$(awk '/^BLEU/ { print ($5 + 0 > $7 + 0 ? "lstm_encdec_doc" : "lstm_encdec") }' "$work/against.txt")
cat > "$work/sentences.de" << 'END'
Ich möchte morgen mit dir nach Boston gehen.
Warum hast du mir das Buch nicht gegeben?
Tom sagt, dass er heute nicht kommen kann.
END
echo "== translate three sentences by $best"
python -m fairseq_plugins translate "$work/data-bin.pairs" --path "$work/$best/checkpoint_best.pt" --cpu \
  --input "$work/sentences.de" --plot "$work/attention.png" > "$work/sentences.en"
paste "$work/sentences.de" "$work/sentences.en" | awk -F '\t' '{ print "   " $1 "\n   -> " $2 }'

{
  printf 'Translation from German into English, 1,000 sentences, `bash scripts/demo.sh`.\n\n'
  cat "$work/compared.pairs/table.md"
  printf '\n`lstm_encdec_doc` against `lstm_encdec`:\n\n```text\n'
  cat "$work/against.txt"
  printf '```\n\nSentences that are not in the corpus, by `%s`; the map shows its attention in the first one.\n\n' "$best"
  printf '| German | English |\n|---|---|\n'
  paste "$work/sentences.de" "$work/sentences.en" | awk -F '\t' '{ print "| " $1 " | " $2 " |" }'
  printf '\n![Learning curves](translation_curves.png)\n\n![Attention map](attention.png)\n'
} > "$work/translation.md"
publish() {  # FILE NAME: to demo-work/results, whole or not at all
  cp "$1" "$out/.$2"
  mv "$out/.$2" "$out/$2"
}
publish "$work/compared.lm/table.md" table.md
publish "$work/compared.lm/runs.json" runs.json
publish "$work/compared.lm/learning_curves.png" learning_curves.png
publish "$work/compared.pairs/learning_curves.png" translation_curves.png
publish "$work/attention.png" attention.png
publish "$work/translation.md" translation.md
cat << END

Shown: language models and translators with one softmax and with DOC, a mixture of softmaxes that read several layers, at equal size.
A lower perplexity and a higher BLEU are better. One seed says little: results/demo/seeds has six of each translator.
Tables and pictures: $out/table.md, $out/translation.md, $out/*.png
Checkpoints and logs: $work/lstm_lm_awd, $work/lstm_lm_doc, $work/lstm_encdec, $work/lstm_encdec_doc
Next, after "source .venv/bin/activate":
  echo "Das Wasser ist kalt." | fairseq-plugins translate $work/data-bin.pairs --path $work/lstm_encdec_doc
  echo "The water is cold." | fairseq-plugins lm score $work/data-bin.lm --path $work/lstm_lm_doc --per token
  echo "The water" | fairseq-plugins lm generate $work/data-bin.lm --path $work/lstm_lm_doc --num 3
  fairseq-plugins            # all commands
  README.md                  # Penn Treebank, Multi30k, AG News, and your own text
END
