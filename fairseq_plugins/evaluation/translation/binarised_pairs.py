"""A directory of sentence pairs, as ``fairseq-preprocess`` and data-prep leave it."""

import re
from pathlib import Path
from typing import Optional

from fairseq.data import data_utils

from fairseq_plugins.flags.input_paths import check_data_folder


def target_language(data: Path, split: str) -> str:
    """The language that models of a directory translate into.

    Raises:
        ValueError: if the directory or the split is missing, or holds pairs of several languages.
    """
    check_data_folder(data)
    pairs = [re.fullmatch(r"(.+)\.([^.-]+-([^.-]+))\.\3\.idx", path.name) for path in sorted(data.glob("*.idx"))]
    splits = sorted({pair[1] for pair in pairs if pair})
    if split not in splits:
        taken = f"take one of {', '.join(splits)}" if splits else "it holds no pairs"
        raise ValueError(f"{data} has no {split} set: {taken}")
    found = [pair for pair in pairs if pair and pair[1] == split]
    if len(found) > 1:
        languages = ", ".join(pair[2] for pair in found)
        raise ValueError(f"{data} has {split} sets of several pairs of languages, {languages}: keep them apart")
    return found[0][3]


def num_sentences(data: Path, split: str) -> int:
    """How many pairs a split has.

    Raises:
        ValueError: as :func:`target_language`, or if the binaries are not whole.
    """
    side = re.compile(rf"{re.escape(split)}\.[^.-]+-([^.-]+)\.\1\.idx")
    target_language(data, split)
    (index,) = (path for path in data.glob("*.idx") if side.fullmatch(path.name))
    pairs = data_utils.load_indexed_dataset(str(index.with_suffix("")), None)
    if pairs is None:
        raise ValueError(f"{data} lacks binaries of {index.stem}: prepare it again")
    return len(pairs)


def raw_reference(data: Path, split: str) -> Path:
    """The untokenised text of a split's target side, which data-prep writes beside the binaries.

    Raises:
        ValueError: as :func:`target_language`, or if there is no such text.
    """
    path = data / "raw" / f"{split}.{target_language(data, split)}"
    if not path.is_file():
        raise ValueError(f"{path} does not exist: name the raw reference text with --reference")
    return path


def check_pair_dictionaries(data: Path, source: Optional[str], target: Optional[str]) -> None:
    """Refuse a folder that lacks the dictionaries of two languages, or where None, of those that its files name.

    Raises:
        ValueError: with the remedy.
    """
    check_data_folder(data)
    languages = (source, target) if source and target else tuple(data_utils.infer_language_pair(str(data)))
    if not all((data / f"dict.{language}.txt").is_file() for language in languages):
        raise ValueError(
            f"{data} has no dictionaries of {languages[0]} and {languages[1]}: give the folder that data-prep wrote"
        )
