"""Entry of every corpus' prepare.sh: ``python3 prepare.py CORPUS [option]...``."""

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # fairseq_plugins of this checkout

from preparation.errors import ACTIVATE

try:
    from preparation.main import main
except ImportError as error:
    sys.exit(f"error: {error}: {ACTIVATE}")

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
