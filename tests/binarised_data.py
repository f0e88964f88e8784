"""Binarised text: a split of given lines, and copies of folders."""

import json
import shutil
from pathlib import Path

import torch
from fairseq.data import indexed_dataset

V = 40
"""Words of a dictionary where no other size is given."""


def write_split(folder, name, lines, *, vocab_size=V, impl="mmap"):
    """A split as ``fairseq-preprocess`` writes it; returns its path."""
    folder.mkdir(exist_ok=True)
    builder = indexed_dataset.make_builder(f"{folder}/{name}.bin", impl=impl, vocab_size=vocab_size)
    for line in lines:
        builder.add_item(torch.tensor(line))
    builder.finalize(f"{folder}/{name}.idx")
    return folder / name


SUBWORDS = "#version: 0.2\nx a</w>\n"
"""Codes of subword-nmt with one merge."""


def copy_data(source, target, *, subwords=False, **text):
    """Copy a folder of binarised text, whose files may then be changed: without their digests. Returns the path.

    Args:
        source: the folder.
        target: its copy, where nothing is.
        subwords: put :data:`SUBWORDS` there.
        text: what ``text.json`` says of raw text, such as ``case="kept"``; nothing for no such file.
    """
    copy = Path(shutil.copytree(source, target, ignore=shutil.ignore_patterns("digests.json")))
    if subwords:
        (copy / "bpe.codes").write_text(SUBWORDS)
    if text:
        (copy / "text.json").write_text(json.dumps(text))
    return copy
