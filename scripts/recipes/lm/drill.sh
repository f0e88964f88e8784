#!/usr/bin/env bash
# Penn Treebank and WikiText-2 with the settings of Pappas & Henderson 2019. Published perplexities (valid / test), after
# fine-tuning by scripts/recipes/lm/fine_tune.sh:
#
#   system                                          PTB           WikiText-2
#   full        softmax with a matrix of its own    69.9 / 66.8
#   tied                                            60.0 / 57.3   68.6 / 65.8
#   bilinear                                        60.7 / 58.5
#   dual        dual nonlinear mapping              58.8 / 56.4
#   drill1      DRILL of depth 1                    58.8 / 56.2
#   drill2                                          58.7 / 56.0
#   drill3                                          58.5 / 55.9
#   drill       depth 4                             58.2 / 55.7   64.9 / 61.9
#               before fine-tuning                  59.6 / 57.0   65.7 / 62.8
#   residual    depth 4, residuals between layers   59.6 / 57.5
#   standard    depth 4, a mask for each label      63.4 / 60.7
set -euo pipefail

usage="usage: drill.sh {full|tied|bilinear|dual|drill1|drill2|drill3|drill|residual|standard} SEED DATA SAVE_DIR
                [fairseq-train flags]
  DATA      directory that data-prep/ptb/prepare.sh or data-prep/wikitext-2/prepare.sh wrote
  SAVE_DIR  directory for checkpoints and train.log; run again to resume
Environment: CORPUS=ptb (default) or wt2, whose settings are taken."
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh" "$@"

corpus=${CORPUS:-ptb}
case $system in
  full) flags=("lstm_lm_full_$corpus") ;;
  tied) flags=("lstm_lm_awd_$corpus") ;;
  bilinear | dual | drill) flags=("lstm_lm_${system}_$corpus") ;;
  drill[1-3]) flags=("lstm_lm_drill_$corpus" --label-depth "${system#drill}") ;;
  residual) flags=("lstm_lm_drill_$corpus" --label-layer-residual on) ;;
  standard) flags=("lstm_lm_drill_$corpus" --label-mask standard) ;;
  *) refuse ;;
esac

bash "$(dirname "${BASH_SOURCE[0]}")/train_preset.sh" "${flags[0]}" "$data" "$save_dir" \
  --seed "$seed" "${flags[@]:1}" "${user_flags[@]}"
