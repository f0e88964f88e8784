"""Entry of every corpus' prepare.sh: ``python3 prepare.py CORPUS [option]...``."""

import io
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves it out
sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # fairseq_plugins of this checkout

from preparation import ACTIVATE

try:
    from preparation.main import main
except ImportError as error:
    print(f"error: {error}: {ACTIVATE}", file=sys.stderr)
    sys.exit(2)

if __name__ == "__main__":
    if isinstance(sys.stdout, io.TextIOWrapper):  # a path may have characters that the terminal lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(main(sys.argv[1:]))
