"""Same as ``python -m fairseq_plugins.cli.headline_baselines``, with the package of this checkout."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from fairseq_plugins.cli.headline_baselines import HeadlineBaselines

    HeadlineBaselines().main()
