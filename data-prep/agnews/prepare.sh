#!/usr/bin/env bash
# AG News, descriptions and headlines, see README.md here.
set -euo pipefail
here=$(CDPATH= cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")" && pwd)
command -v python3 >/dev/null || {
  echo "error: python3 is not on PATH: activate the environment that fairseq is installed in" >&2
  exit 1
}
exec python3 "$here/../prepare.py" agnews "$@"
