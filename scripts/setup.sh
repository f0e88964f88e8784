#!/usr/bin/env bash
# Make .venv with the tested versions and the plugin in it. Run again: does nothing unless they changed.
set -euo pipefail

usage="usage: bash scripts/setup.sh
  Creates .venv beside this checkout and installs requirements.txt and the plugin (editable).
  PYTHON=python3.12 bash scripts/setup.sh   chooses the interpreter (3.11 or 3.12; default python3)"
case ${1:-} in
  "") ;;
  --help) echo "$usage"; exit 0 ;;
  *) echo "$usage" >&2; exit 2 ;;
esac

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
stamp=$root/.venv/.installed
wanted=$(cat "$root/requirements.txt" "$root/setup.py" | sha256sum)
[[ -f $stamp && $(<"$stamp") == "$wanted" ]] && exit 0

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "setup.sh: Python 3.11 or newer is needed, $("$python" --version) was found: set PYTHON to another" >&2
  exit 1
}
echo "installing into .venv ..."
[[ -x $root/.venv/bin/python ]] || "$python" -m venv "$root/.venv"
"$root/.venv/bin/python" -m pip install --quiet --upgrade pip
"$root/.venv/bin/python" -m pip install --quiet --requirement "$root/requirements.txt"
"$root/.venv/bin/python" -m pip install --quiet --no-deps --editable "$root"
echo "$wanted" > "$stamp"
