# shellcheck shell=bash
# What the scripts here and the recipes share: the package of this checkout, for a python that has fairseq.
root=$(CDPATH= cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONSAFEPATH=1 # the working directory may hold another checkout
python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("fairseq") is None)' 2> /dev/null || {
  echo "error: no python with fairseq on PATH: activate its environment; bash scripts/setup.sh makes one, .venv" >&2
  exit 2
}
