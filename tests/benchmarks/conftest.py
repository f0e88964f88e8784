"""Tests import the scripts of scripts/benchmarks, which are not installed."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts/benchmarks"))
