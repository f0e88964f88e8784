#!/usr/bin/env bash
# Make .venv with the tested versions and the plugin in it. Run again: does nothing unless they changed.
set -euo pipefail

usage="usage: bash scripts/setup.sh
  Creates .venv beside this checkout and installs requirements.txt and the plugin (editable).
  PYTHON=python3.12 bash scripts/setup.sh   chooses the interpreter (3.11 or 3.12; default that of .venv, or python3)"
case ${1:-} in
  "") ;;
  --help) echo "$usage"; exit 0 ;;
  *) echo "$usage" >&2; exit 2 ;;
esac

root=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
stamp=$root/.venv/.installed
# not where the environment was moved or copied with its checkout, since its programs name the place where it was made,
# or where making it was interrupted
was_made_here() {
  grep -qsF " $root/.venv" "$root/.venv/pyvenv.cfg" && "$root/.venv/bin/python" -c "import pip" 2> /dev/null
}
python=${PYTHON:-}
[[ -n $python ]] || { was_made_here && python=$root/.venv/bin/python; } || python=python3
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[[ $version == 3.11 || $version == 3.12 ]] || {
  echo "setup.sh: Python 3.11 or 3.12 is needed, $python is $version: set PYTHON to another" >&2
  exit 1
}
wanted="Python $version $(cat "$root/requirements.txt" "$root/setup.py" | sha256sum)"
was_made_here && [[ -f $stamp && $(<"$stamp") == "$wanted" ]] && exit 0

echo "installing into .venv ..."
was_made_here && [[ $("$root/.venv/bin/python" --version 2>&1) == "Python $version."* ]] ||
  "$python" -m venv --clear "$root/.venv"
pip=("$root/.venv/bin/python" -m pip --disable-pip-version-check)
quiet=(--quiet)
[[ -t 1 ]] && quiet=() # a person sees what is downloaded
"${pip[@]}" install "${quiet[@]}" --upgrade pip
"${pip[@]}" install "${quiet[@]}" --requirement "$root/requirements.txt"
log=$root/.venv/install.log
"${pip[@]}" install --no-deps --editable "$root" > "$log" 2>&1 || { cat "$log" >&2; exit 1; }
echo "$wanted" > "$stamp"
