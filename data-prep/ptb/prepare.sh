#!/usr/bin/env bash
# Penn Treebank in Mikolov's word-level form: 10,000 words, see README.md here.
set -euo pipefail
here=$(CDPATH= cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")" && pwd)
command -v python3 >/dev/null || {
  echo "error: python3 is not on PATH: activate the environment that fairseq is installed in" >&2
  exit 1
}
exec python3 "$here/../prepare.py" ptb "$@"
