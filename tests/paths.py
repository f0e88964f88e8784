"""Folders of the checkout."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLUGINS = ROOT / "fairseq_plugins"
SMALL_MODELS = ROOT / "tests/fixtures/small_models"
"""Four trained models, and ``data/lm`` and ``data/translation`` that they were trained on."""
