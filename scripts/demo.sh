#!/usr/bin/env bash
# Install, train language models and translators with one softmax and with DOC on short sentences, compare, translate.
set -euo pipefail

usage="usage: bash scripts/demo.sh
  On 14,000 German-English sentence pairs of Tatoeba (fairseq_plugins/demo_corpus), without a download:
    language models of the English side: AWD-LSTM with a tied softmax and with DOC, perplexity
    translators: lstm_encdec with one softmax and with DOC, BLEU; the one with DOC translates three sentences
  Writes demo-work/results (tables, figures, pictures); the rest of demo-work is text, checkpoints, logs.
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
work=demo-work out=demo-work/results
mkdir -p "$work"

prepare() {  # SIDES NAME FLAG...: to demo-work/data-bin.NAME
  bash data-prep/tatoeba/prepare.sh "$1" --from fairseq_plugins/demo_corpus --dest "$work/data-bin.$2" \
    --work "$work/text.$2" "${@:3}" > "$work/prepare.$2.log" 2>&1 || { tail -n 5 "$work/prepare.$2.log" >&2; exit 1; }
}

run() {  # RECIPE NAME FLAG...: trains to demo-work/SYSTEM-1, compares to demo-work/results/NAME
  python -m fairseq_plugins run "$1" "$work/data-bin.$2" --save-dir "$work" --out "$out/$2" --jobs 2 --cpu "${@:3}"
}

echo "== prepare the corpus"
prepare en lm
prepare de-en pairs --merges 1500
echo "== language models, two at a time (logs: $work/lstm_lm_*/train.log)"
run demo_lm lm --systems lstm_lm_awd lstm_lm_doc
echo "== translators, two at a time (logs: $work/lstm_encdec*/train.log)"
run demo_translation pairs --systems lstm_encdec lstm_encdec_doc --baseline lstm_encdec

cat > "$work/sentences.de" << 'END'
Ich möchte morgen mit dir nach Boston gehen.
Warum hast du mir das Buch nicht gegeben?
Tom sagt, dass er heute nicht kommen kann.
END
echo "== translate three sentences that are not in the corpus"
python -m fairseq_plugins translate "$work/data-bin.pairs" --path "$work/lstm_encdec_doc-1" --cpu \
  --input "$work/sentences.de" --plot "$out/pairs/attention.png" > "$work/sentences.en"
paste "$work/sentences.de" "$work/sentences.en" | awk -F '\t' '{ print "   " $1 "\n   -> " $2 }' | tee "$out/pairs/sentences.txt"
cat << END

Shown: language models and translators, each pair of equal size, with one softmax and with DOC, a mixture of softmaxes that read
several layers. A lower perplexity and a higher BLEU are better. One seed says little: results/demo has more.
Tables and pictures: $out/lm, $out/pairs
Checkpoints and logs: $work/lstm_lm_awd-1, $work/lstm_lm_doc-1, $work/lstm_encdec-1, $work/lstm_encdec_doc-1
Next, after "source .venv/bin/activate":
  echo "Das Wasser ist kalt." | fairseq-plugins translate $work/data-bin.pairs --path $work/lstm_encdec_doc-1
  echo "The water is cold." | fairseq-plugins lm score $work/data-bin.lm --path $work/lstm_lm_doc-1 --per token
  echo "The water" | fairseq-plugins lm generate $work/data-bin.lm --path $work/lstm_lm_doc-1 --num 3
  fairseq-plugins            # all commands
  README.md                  # Penn Treebank, Multi30k, AG News, and your own text
END
