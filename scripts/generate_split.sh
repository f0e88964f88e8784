#!/usr/bin/env bash
# Decode a split with one or more models, unless that was done with the same models, data and flags.
set -euo pipefail

usage="usage: generate_split.sh DATA CHECKPOINT[:CHECKPOINT..] SPLIT OUT [fairseq-generate flags]
Writes OUT/generate.txt (log: generate.log), the output of fairseq-generate with subwords joined.
Environment: BPE=subword_nmt (default) or sentencepiece; BEAM=5; MAX_TOKENS=4000."
[[ ${1:-} == --help ]] && { echo "$usage"; exit 0; }
[[ $# -ge 4 ]] || { echo "$usage" >&2; exit 2; }
data=$1 checkpoint=$2 split=$3 out=$4
shift 4

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
IFS=: read -ra models <<< "$checkpoint"
for model in "${models[@]}"; do
  [[ -f $model ]] || { echo "generate_split.sh: error: $model does not exist" >&2; exit 2; }
done
[[ -d $data ]] || { echo "generate_split.sh: error: $data does not exist" >&2; exit 2; }
compgen -G "$data/$split.*.idx" > /dev/null || {
  echo "generate_split.sh: error: $data has no $split set: take one of $(cd "$data" && ls ./*.idx | sed 's/..//; s/[.].*//' | sort -u | xargs)" >&2
  exit 2
}
mkdir -p "$out"
command=(fairseq-generate "$data" --user-dir "$root/fairseq_plugins" --path "$checkpoint" --gen-subset "$split"
         --beam "${BEAM:-5}" --max-tokens "${MAX_TOKENS:-4000}" --remove-bpe="${BPE:-subword_nmt}" "$@")
asked=$(sha256sum -- "${models[@]}" "$data"/dict.*.txt "$data/$split".* && printf '%q ' "${command[@]}")
if [[ ! -s $out/generate.txt || $(cat "$out/asked.txt" 2> /dev/null) != "$asked" ]]; then
  echo "== decode $split (log: $out/generate.log)" >&2
  rm -f "$out/generate.txt" "$out/generate.txt.tmp"  # what a killed run still writes is lost with the name
  "${command[@]}" > "$out/generate.txt.tmp" 2> "$out/generate.log" || { tail -n 5 "$out/generate.log" >&2; exit 1; }
  printf '%s\n' "$asked" > "$out/asked.txt"
  mv "$out/generate.txt.tmp" "$out/generate.txt"
fi
