"""``text.json`` beside the dictionary of a result of one side: how a raw line becomes words."""

import json
import os
from argparse import Namespace
from pathlib import Path

from .corpus import Corpus
from .errors import note
from .finished import RECORD

NAME = "text.json"


def add_text_record(corpus: Corpus, folder: Path, options: Namespace) -> None:
    """Write it for a corpus of one side."""
    if len(options.kept_sides) > 1:
        return
    aside = folder / f".{NAME}.{os.getpid()}"
    record = {**corpus.words_of_text(options), "unicode": "NFC" if options.nfc else "kept"}
    aside.write_text(f"{json.dumps(record, indent=1)}\n", encoding="utf-8")
    aside.replace(folder / NAME)


def complete_text_record(corpus: Corpus, options: Namespace) -> None:
    """Add it to a finished result from before there was one; nothing else of the result changes."""
    folder = options.dest
    is_from_before = (folder / RECORD).is_file() and not (folder / NAME).exists()
    if is_from_before and len(options.kept_sides) == 1 and os.access(folder, os.W_OK | os.X_OK):
        add_text_record(corpus, folder, options)
        note(f"{folder / NAME} is added, which tells how raw text becomes words")
