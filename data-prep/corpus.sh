# shellcheck shell=bash
# Sourced by every prepare.sh. Prepares the corpus that the script's folder is named after.
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[1]}")")
command -v python3 >/dev/null || {
  echo "error: python3 is not on PATH: activate the environment that fairseq is installed in" >&2
  exit 2
}
exec python3 "$here/../prepare.py" "${here##*/}" "$@"
