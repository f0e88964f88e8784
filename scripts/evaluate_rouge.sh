#!/usr/bin/env bash
# Write headlines for a split, or take a text, and measure ROUGE.
set -euo pipefail

usage="usage: evaluate_rouge.sh DATA CHECKPOINT[:CHECKPOINT..] SPLIT REFERENCE OUT [flags of the score] [-- fairseq-generate flags]
       evaluate_rouge.sh --hypotheses TEXT --reference REFERENCE [--reference REFERENCE ..] [flags of the score]
  DATA        directory that data-prep/<corpus>/prepare.sh wrote
  CHECKPOINT  one model, or several joined by colons as an ensemble
  SPLIT       valid, test, test1, ...
  REFERENCE   raw reference text, a headline a line, such as DATA/raw/test.title
  OUT         directory for generate.txt and rouge.txt; run again, what is decoded stays unless the models, the data or
              the flags are others
Flags of the score: --stemming on|off, --tokenizer rouge|unicode, --max-bytes N (75 in DUC), --max-words N,
--processes N, --json.
Environment: BPE=subword_nmt (default) or sentencepiece; BEAM=5; MAX_TOKENS=4000.
Prints ROUGE-1, -2 and -L with 95 % confidence intervals, and the signature of the settings."
[[ ${1:-} == --help || ${1:-} == -h ]] && { echo "$usage"; exit 0; }

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
evaluate=(python -m fairseq_plugins.cli.evaluate_rouge)
[[ ${1:-} == --* ]] && exec "${evaluate[@]}" "$@"

[[ $# -ge 5 ]] || { echo "$usage" >&2; exit 2; }
data=$1 checkpoint=$2 split=$3 reference=$4 out=$5
shift 5
[[ -f $reference ]] || { echo "evaluate_rouge.sh: error: $reference does not exist" >&2; exit 2; }
flags=()
while [[ $# -gt 0 && $1 != -- ]]; do
  flags+=("$1")
  shift
done
[[ $# -eq 0 ]] || shift

# flags that the score would refuse are refused before the decoding
"${evaluate[@]}" --hypotheses "$reference" --reference "$reference" ${flags[@]+"${flags[@]}"} > /dev/null
rm -f "$out/rouge.txt"
bash "$root/scripts/generate_split.sh" "$data" "$checkpoint" "$split" "$out" "$@"
"${evaluate[@]}" --generated "$out/generate.txt" --reference "$reference" ${flags[@]+"${flags[@]}"} \
  > "$out/rouge.txt.tmp" || { rm "$out/rouge.txt.tmp"; exit 2; }
mv "$out/rouge.txt.tmp" "$out/rouge.txt"
cat "$out/rouge.txt"
