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

root=$(CDPATH= cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
stamp=$root/.venv/.installed log=$root/.venv/install.log
# not where the environment was moved or copied with its checkout, since its programs name the place where it was made,
# or where making it was interrupted
was_made_here() {
  [[ $(sed -n "s|^command = .* -m venv /|/|p" "$root/.venv/pyvenv.cfg" 2> /dev/null) -ef $root/.venv ]] &&
    "$root/.venv/bin/python" -c "import pip" 2> /dev/null
}
# the log is the first file and stays while others are made or removed
may_be_replaced() {
  [[ -e $stamp || -e $log || -z $(ls -A "$root/.venv" 2> /dev/null) ]]
}
python=${PYTHON:-}
[[ -n $python ]] || { was_made_here && python=$root/.venv/bin/python; } || python=python3
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[[ $version == 3.11 || $version == 3.12 ]] || {
  echo "setup.sh: Python 3.11 or 3.12 is needed, $python is $version: set PYTHON to another" >&2
  exit 2
}
wanted="Python $version $(cat "$root/requirements.txt" "$root/setup.py" | sha256sum)"
was_made_here && [[ -f $stamp && $(<"$stamp") == "$wanted" ]] && exit 0

keeps_environment() {
  was_made_here && [[ $("$root/.venv/bin/python" --version 2>&1) == "Python $version."* ]]
}
keeps_environment || may_be_replaced || {
  echo "setup.sh: $root/.venv was not made by this script: move it away or delete it" >&2
  exit 2
}
echo "installing into .venv ..."
keeps_environment || {
  base=$("$python" -c 'import sys; print(sys._base_executable)') # $python itself may be in .venv
  mkdir -p "$root/.venv"
  : > "$log"
  find "$root/.venv/" -mindepth 1 -maxdepth 1 ! -name install.log -exec rm -rf {} +
  "$base" -m venv "$root/.venv"
}
pip=("$root/.venv/bin/python" -m pip --disable-pip-version-check)
quiet=(--quiet)
[[ -t 1 ]] && quiet=() # a person sees what is downloaded
"${pip[@]}" install "${quiet[@]}" --upgrade pip
"${pip[@]}" install "${quiet[@]}" --requirement "$root/requirements.txt"
"${pip[@]}" install --no-deps --editable "$root" > "$log" 2>&1 || { cat "$log" >&2; exit 1; }
echo "$wanted" > "$stamp"
