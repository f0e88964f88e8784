#!/usr/bin/env bash
# Train any architecture with the training of its preset, that is its paper's.
set -euo pipefail

usage="usage: train_preset.sh ARCH DATA SAVE_DIR [fairseq-train flags]
  ARCH      an architecture such as lstm_lm_doc_ptb; train_preset.sh --list prints them with their published figures
  DATA      directory that data-prep/<corpus>/prepare.sh wrote
  SAVE_DIR  directory for checkpoints and train.log; run again to resume
Flags given here come last and win. Fine-tune with scripts/recipes/lm/fine_tune.sh."
case ${1:-} in
  --help) echo "$usage"; exit 0 ;;
  --list) ;;
  *) [[ $# -ge 3 ]] || { echo "$usage" >&2; exit 2; } ;;
esac
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../../package.sh"
[[ $1 != --list ]] || exec python -m fairseq_plugins.cli.train --list presets
exec python -m fairseq_plugins.cli.train presets "$1" "$2" --save-dir "$3" "${@:4}"
