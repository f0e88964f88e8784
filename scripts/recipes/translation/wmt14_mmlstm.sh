#!/usr/bin/env bash
# WMT 2014 German-English with the LSTM of Luong et al. 2015 and the Major-Minor LSTM of Shuang et al. 2020, table XII.
# Published perplexity and BLEU:
#
#   system   parameters   newstest2015    newstest2016
#   lstm     170.7M       6.83 / 29.36    5.39 / 33.38
#   mmlstm   172.8M       6.15 / 30.83    4.88 / 35.48
#
# The paper gives SGD at 1.0, 340,000 updates and "dropout 1.0"; batches, dropout 0.2, clipping, length and the halving of
# the rate after half of the updates are those of the toolkit whose recipe this is (TensorFlow's NMT tutorial), but for
# its forget bias of 1, which may be what the 1.0 means. The host warns each epoch that it has no rate by epoch: those by
# update are taken.
set -euo pipefail

usage="usage: wmt14_mmlstm.sh {lstm|mmlstm} SEED DATA SAVE_DIR [fairseq-train flags]
  DATA      directory that data-prep/wmt14/prepare.sh de-en --max-length 50 wrote
  SAVE_DIR  directory for checkpoints and train.log; run again to resume
Then: BEAM=10 bash scripts/evaluate_bleu.sh DATA SAVE_DIR/checkpoint_best.pt newstest2015 DATA/raw/newstest2015.en OUT
and for perplexity: fairseq-validate DATA --user-dir fairseq_plugins --path SAVE_DIR/checkpoint_best.pt \\
  --task translation --valid-subset newstest2015 --batch-size 128"
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh" "$@"

[[ $system == lstm || $system == mmlstm ]] || refuse

# nine halvings, every 17,000 updates from 187,000 on
rates='{"1": 1'
for (( n = 1; n <= 9; n++ )); do
  rates+=", \"$(( 170000 + n * 17000 ))\": $(awk "BEGIN { printf \"%.9f\", 0.5 ^ $n }")"
done
rates+='}'

train --task translation --arch "${system}_encdec_wmt14" --criterion regularized_cross_entropy --sentence-avg \
  --batch-size 128 --max-update 340000 \
  --optimizer sgd --lr 1 --lr-scheduler manual --update2lr "$rates" --clip-norm 5
