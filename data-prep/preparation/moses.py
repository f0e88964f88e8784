"""Moses' words, in the same code that the commands of the package read raw text by."""

import importlib.util
from pathlib import Path

_PATH = Path(__file__).resolve().parents[2] / "fairseq_plugins" / "evaluation" / "moses.py"
# Loaded by its path: importing the package takes seconds, which only the corpus of trees needs.
_spec = importlib.util.spec_from_file_location(f"{__package__}.of_the_package", _PATH)
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)

ESCAPES, MosesWords, TokenSigns = _module.ESCAPES, _module.MosesWords, _module.TokenSigns
clean, composed = _module.clean, _module.composed
