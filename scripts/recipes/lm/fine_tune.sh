#!/usr/bin/env bash
# Fine-tune a language model again and again until validation stops improving ("fin" in Takase et al. 2018):
# averaged SGD from the first update, a fresh average every round, each round from the best model so far.
set -euo pipefail

usage="usage: fine_tune.sh ARCH CHECKPOINT DATA SAVE_DIR [MAX_ROUNDS [fairseq-train flags]]
  ARCH        architecture of the checkpoint with a paper's preset, such as lstm_lm_doc_ptb
  CHECKPOINT  model to start from, such as SAVE_DIR/checkpoint_best.pt of its training
  DATA        directory that data-prep/<corpus>/prepare.sh wrote
  SAVE_DIR    gets round1, round2, ... and the best model as checkpoint_fin.pt; run again to resume
  MAX_ROUNDS  1 is the papers' single fine-tuning (default: until a round brings no gain)
Flags that shaped the model in its training, such as --hidden-sizes, must be given again."
[[ ${1:-} == --help ]] && { echo "$usage"; exit 0; }
[[ $# -ge 4 ]] || { echo "$usage" >&2; exit 2; }
arch=$1 best=$2 data=$3 save_dir=$4 max_rounds=${5:-1000000}
shift $(( $# < 5 ? 4 : 5 ))
[[ $max_rounds =~ ^[1-9][0-9]*$ ]] || { echo "fine_tune.sh: MAX_ROUNDS $max_rounds is not a number above 0" >&2; exit 2; }

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
start="$arch from $best"
if [[ -f $save_dir/start.txt && $(<"$save_dir/start.txt") != "$start" ]]; then
  echo "fine_tune.sh: $save_dir holds a fine-tuning of $(<"$save_dir/start.txt"): give another SAVE_DIR" >&2
  exit 2
fi
preset=$(python -m fairseq_plugins.cli.preset_flags "$arch" --fine-tune)
mapfile -t flags <<< "$preset"

valid_nll() {
  local figures
  figures=$(python -m fairseq_plugins.cli.evaluate_lm "$data" --path "$1" --split valid --json) || return
  python -c 'import json, sys; print(json.loads(sys.argv[1])["nll"])' "$figures"
}

best_nll=$(valid_nll "$best")
echo "start: valid NLL $best_nll of $best"
mkdir -p "$save_dir"
echo "$start" > "$save_dir/start.txt"
for (( round = 1; round <= max_rounds; round++ )); do
  mkdir -p "$save_dir/round$round"
  fairseq-train "$data" --user-dir "$root/fairseq_plugins" --save-dir "$save_dir/round$round" --finetune-from-model "$best" \
    "${flags[@]}" --no-epoch-checkpoints --log-format simple --log-interval 200 "$@" \
    2>&1 | tee -a "$save_dir/round$round/train.log"
  nll=$(valid_nll "$save_dir/round$round/checkpoint_best.pt")
  echo "round $round: valid NLL $nll, best so far $best_nll"
  awk -v new="$nll" -v old="$best_nll" 'BEGIN { exit !(new < old) }' || break
  best=$save_dir/round$round/checkpoint_best.pt best_nll=$nll
done
cp "$best" "$save_dir/checkpoint_fin.pt.part"
mv "$save_dir/checkpoint_fin.pt.part" "$save_dir/checkpoint_fin.pt"
echo "valid NLL $best_nll: $save_dir/checkpoint_fin.pt (from $best)"
