"""Moses' words, by the code with which the package's commands read raw text."""

import importlib.util
from pathlib import Path

_PATH = Path(__file__).resolve().parents[2] / "fairseq_plugins" / "evaluation" / "moses.py"
# Loaded by its path, because importing the package takes seconds.
_spec = importlib.util.spec_from_file_location(f"{__package__}.moses_of_package", _PATH)
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)

ESCAPES, MosesWords, TokenSigns = _module.ESCAPES, _module.MosesWords, _module.TokenSigns
clean, composed = _module.clean, _module.composed
