#!/usr/bin/env bash
# Translate a split and measure BLEU and chrF.
set -euo pipefail

usage="usage: evaluate_bleu.sh DATA CHECKPOINT[:CHECKPOINT..] SPLIT REFERENCE OUT [--against BASELINE_OUT]
                        [-- fairseq-generate flags]
  DATA        directory that data-prep/<corpus>/prepare.sh wrote
  CHECKPOINT  one model, or several joined by colons as an ensemble
  SPLIT       valid, test, test1, ...
  REFERENCE   raw reference text, a sentence a line, such as DATA/raw/test.de
  OUT         directory for generate.txt, hypotheses.txt and scores.txt; run again, what is translated stays unless
              the models or flags are others
  --against   OUT of a baseline on the same split: a paired bootstrap test is added
Environment: BPE=subword_nmt (default) or sentencepiece; BEAM=5; MAX_TOKENS=4000.
Prints detokenised BLEU and chrF with sacreBLEU's signature, and the BLEU of tokens that papers report, each with a
95 % confidence interval."
[[ ${1:-} == --help ]] && { echo "$usage"; exit 0; }
[[ $# -ge 5 ]] || { echo "$usage" >&2; exit 2; }
data=$1 checkpoint=$2 split=$3 reference=$4 out=$5
shift 5
against=()
if [[ ${1:-} == --against ]]; then
  [[ $# -ge 2 ]] || { echo "$usage" >&2; exit 2; }
  against=(--against "$2/generate.txt")
  [[ -f $2/generate.txt ]] || { echo "evaluate_bleu.sh: error: $2 has no generate.txt: evaluate the baseline first" >&2; exit 2; }
  shift 2
fi
if [[ $# -gt 0 ]]; then
  [[ $1 == -- ]] || { echo "evaluate_bleu.sh: error: $1: flags of fairseq-generate come after --" >&2; exit 2; }
  shift
fi
[[ -f $reference ]] || { echo "evaluate_bleu.sh: error: $reference does not exist" >&2; exit 2; }
language=${reference##*.}
compgen -G "$data/$split.*-$language.$language.idx" > /dev/null || {
  echo "evaluate_bleu.sh: error: $data has no $split set with the target language $language, which $reference ends in" >&2
  exit 2
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
rm -f "$out/scores.txt"
bash "$root/scripts/generate_split.sh" "$data" "$checkpoint" "$split" "$out" "$@"
python -m fairseq_plugins.cli.evaluate_translation "$out/generate.txt" --reference "$reference" \
  --target-lang "$language" --hypotheses "$out/hypotheses.txt" ${against[@]+"${against[@]}"} \
  > "$out/scores.txt.tmp" || { rm "$out/scores.txt.tmp"; exit 2; }
mv "$out/scores.txt.tmp" "$out/scores.txt"
cat "$out/scores.txt"
