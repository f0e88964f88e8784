# shellcheck shell=bash
# What the recipes share. A recipe sets `usage` and sources this with its own arguments: SYSTEM SEED DATA SAVE_DIR
# [fairseq-train flags]. Then it has `system`, and trains by the function below.

[[ ${1:-} == --help ]] && { echo "$usage"; exit 0; }
refuse() { echo "$usage" >&2; exit 2; }
[[ $# -ge 4 ]] || refuse
system=$1 seed=$2 data=$3 save_dir=$4
user_flags=("${@:5}")

train() {  # the recipe's flags; those of the user come last and win
  [[ -d $data ]] || { echo "$(basename "$0"): error: $data does not exist: give the directory that data-prep wrote" >&2; exit 2; }
  local root
  root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
  mkdir -p "$save_dir"
  fairseq-train "$data" --user-dir "$root/fairseq_plugins" --save-dir "$save_dir" --seed "$seed" \
    --num-workers 0 --distributed-world-size 1 --no-epoch-checkpoints --log-format simple --log-interval 50 \
    "$@" "${user_flags[@]}" 2>&1 | tee -a "$save_dir/train.log"
}
