"""Corpora for machines without a network: the demo's sentences, and random words where sizes are all that counts.

Each is binarised once, in a folder of its own.
"""

import gzip
import re
import shutil
from pathlib import Path
from typing import List, Mapping

import torch
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import make_builder

import fairseq_plugins
from fairseq_plugins.benchmarks.device.setting import Setting

DEMO_CORPUS = Path(fairseq_plugins.__file__).parent / "demo_corpus"
SPLITS = ("train", "valid", "test")
LINE_LENGTH = 25
"""Words of a line of random text."""


def demo_text(folder: Path, *, num_sentences: int) -> Path:
    """The English side of the demo's sentences for language models; ``num_sentences`` of each split at most."""
    lines = {split: _demo_lines(split, "en", num_sentences) for split in SPLITS}
    return _binarised(folder / f"demo-en-{num_sentences}", {"": lines})


def demo_pairs(folder: Path, *, num_sentences: int) -> Path:
    """The demo's sentences in German and English; ``num_sentences`` of each split at most."""
    sides = {
        language: {split: _demo_lines(split, language, num_sentences) for split in SPLITS} for language in ("de", "en")
    }
    return _binarised(folder / f"demo-de-en-{num_sentences}", sides)


def demo_data(setting: Setting, *, task: str) -> str:
    """The folder of the demo's sentences for trainings by a task, at the setting's scale."""
    make = demo_text if task == "stateful_lm" else demo_pairs
    return str(make(setting.folder / "data", num_sentences=setting.scale.num_sentences))


def random_text(folder: Path, *, vocab_size: int, num_words: int) -> Path:
    """Random words, the frequent ones by Zipf's law, each at least once; their dictionary has ``vocab_size`` symbols.

    It trains a model at the speed of a real text of that vocabulary; perplexities mean nothing.
    """
    generator = torch.Generator().manual_seed(0)
    num_kinds = vocab_size - 4  # beside fairseq's own symbols
    frequencies = 1 / torch.arange(1, num_kinds + 1)
    lines = {}
    for split, size in zip(SPLITS, (num_words, num_words // 50, num_words // 50)):
        drawn = torch.multinomial(frequencies, size, replacement=True, generator=generator).tolist()
        words = [*(range(num_kinds) if split == "train" else ()), *drawn]
        lines[split] = [
            " ".join(f"w{word}" for word in words[first : first + LINE_LENGTH])
            for first in range(0, len(words), LINE_LENGTH)
        ]
    return _binarised(folder / f"random-{vocab_size}-{num_words}", {"": lines})


def _demo_lines(split: str, language: str, num_sentences: int) -> List[str]:
    """Lower-case words and marks with spaces between them."""
    with gzip.open(DEMO_CORPUS / f"{split}.{language}.gz", "rt", encoding="utf-8") as file:
        lines = file.read().splitlines()[:num_sentences]
    return [" ".join(re.findall(r"\w+|[^\w\s]", line.lower())) for line in lines]


def _binarised(folder: Path, sides: Mapping[str, Mapping[str, List[str]]]) -> Path:
    """Text by side and split as fairseq's preprocessing leaves it in ``folder``, unless that is done."""
    if folder.exists():
        return folder
    aside = folder.with_name(f".{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    pair = "-".join(sides)
    for side, splits in sides.items():
        dictionary = Dictionary()
        for line in splits["train"]:
            dictionary.encode_line(line, add_if_not_exist=True)
        dictionary.finalize(padding_factor=1)
        dictionary.save(str(aside / (f"dict.{side}.txt" if side else "dict.txt")))
        for split, lines in splits.items():
            name = aside / (f"{split}.{pair}.{side}" if side else split)
            builder = make_builder(f"{name}.bin", impl="mmap", vocab_size=len(dictionary))
            for line in lines:
                builder.add_item(dictionary.encode_line(line, add_if_not_exist=False))
            builder.finalize(f"{name}.idx")
    aside.rename(folder)
    return folder
