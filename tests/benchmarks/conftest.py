"""Tests import the scripts of scripts/benchmarks, which are not installed."""

import sys

from paths import ROOT

sys.path.append(str(ROOT / "scripts/benchmarks"))
