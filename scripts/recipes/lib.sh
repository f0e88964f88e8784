# shellcheck shell=bash
# What the recipes' scripts share. A script sets `recipe`, `corpus` and, where it reads
# any, `environment`; then it sources this with its own arguments.

name=$(basename "$0")
usage="usage: $name SYSTEM SEED DATA SAVE_DIR [fairseq-train flags]
  SYSTEM    a row of the recipe's table; $name --list prints them with their published figures
  DATA      directory that data-prep/$corpus wrote
  SAVE_DIR  directory for checkpoints and train.log; run again to resume
${environment:+Environment: $environment.
}Flags given here come last and win. This is
  python -m fairseq_plugins.cli.train $recipe SYSTEM DATA --save-dir SAVE_DIR --seed SEED"

case ${1:-} in
  --help) echo "$usage"; exit 0 ;;
  --list) ;;
  *) [[ $# -ge 4 ]] || { echo "$usage" >&2; exit 2; } ;;
esac
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../package.sh"
[[ $1 != --list ]] || exec python -m fairseq_plugins.cli.train --list "$recipe"
exec python -m fairseq_plugins.cli.train "$recipe" "$1" "$3" --save-dir "$4" --seed "$2" "${@:5}"
