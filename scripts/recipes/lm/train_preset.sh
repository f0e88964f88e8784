#!/usr/bin/env bash
# Train a language model with a paper's hyper-parameters. Published perplexities (valid / test):
#
#   lstm_lm_awd_ptb   Merity et al. 2018    60.7 / 58.8 before fine-tuning, 60.0 / 57.3 after
#   lstm_lm_mos_ptb   Yang et al. 2018      58.08 / 55.97 before fine-tuning, 56.54 / 54.44 after
#   lstm_lm_doc_ptb   Takase et al. 2018    54.62 / 52.87 after one fine-tuning, 54.12 / 52.38 repeated (fin)
#   lstm_lm_full_ptb  Pappas & Henderson 2019, table 4   69.9 / 66.8
#   lstm_lm_zaremba_medium_ptb      Takase et al. 2017   87.1 / 84.0
#   lstm_lm_zaremba_large_ptb       82.7 / 78.6
#   lstm_lm_variational_medium_ptb  82.8 / 79.1
#   lstm_lm_variational_large_ptb   78.1 / 74.6
#   lstm_lm_zaremba_medium_wt2      102.2 / 96.2
#   lstm_lm_variational_medium_wt2  97.2 / 91.8
#   lstm_lm_awd_wt2   69.1 / 66.0 before fine-tuning, 68.6 / 65.8 after
#   lstm_lm_mos_wt2   66.01 / 63.33 before fine-tuning, 63.88 / 61.45 after
#   lstm_lm_doc_wt2   60.97 / 58.55 after one fine-tuning
#
# The result of Zaremba's and variational LSTMs is the model after the last epoch, checkpoint_last.pt.
set -euo pipefail

usage="usage: train_preset.sh ARCH DATA SAVE_DIR [fairseq-train flags]
  ARCH      an architecture with a paper's preset, such as lstm_lm_doc_ptb
  DATA      directory that data-prep/<corpus>/prepare.sh wrote
  SAVE_DIR  directory for checkpoints and train.log; run again to resume
Flags given here come last and win. Fine-tune with scripts/recipes/lm/fine_tune.sh."
[[ ${1:-} == --help ]] && { echo "$usage"; exit 0; }
[[ $# -ge 3 ]] || { echo "$usage" >&2; exit 2; }
arch=$1 data=$2 save_dir=$3
shift 3
[[ -d $data ]] || { echo "train_preset.sh: error: $data does not exist: give the directory that data-prep wrote" >&2; exit 2; }

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
preset=$(python -m fairseq_plugins.cli.preset_flags "$arch")
mapfile -t flags <<< "$preset"
mkdir -p "$save_dir"
fairseq-train "$data" --user-dir "$root/fairseq_plugins" --save-dir "$save_dir" "${flags[@]}" \
  --no-epoch-checkpoints --log-format simple --log-interval 200 "$@" 2>&1 | tee -a "$save_dir/train.log"
