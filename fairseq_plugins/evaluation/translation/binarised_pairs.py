"""A directory of sentence pairs, as ``fairseq-preprocess`` and data-prep leave it."""

import re
from pathlib import Path
from typing import Iterable, List, Optional, Tuple

from fairseq.data import data_utils

from fairseq_plugins.flags.input_paths import check_data_folder

Languages = Tuple[str, str]
"""Source and target."""


def split_languages(data: Path, split: str) -> Languages:
    """The pair of languages that the files of a split name; a model may translate the other way.

    Raises:
        ValueError: if the directory or the split is missing, or holds pairs of several languages.
    """
    found = _named_pairs(data, split)
    if len(found) > 1:
        languages = ", ".join("-".join(pair) for pair in found)
        raise ValueError(f"{data} has {split} sets of several pairs of languages, {languages}: keep them apart")
    return found[0]


def one_pair(pairs: Iterable[Languages]) -> Languages:
    """The pair of languages of all models.

    Raises:
        ValueError: if they translate several pairs.
    """
    found = sorted(set(pairs))
    if len(found) > 1:
        told = " and ".join("-".join(pair) for pair in found)
        raise ValueError(f"the models translate {told}: give models of one pair of languages")
    return found[0]


def check_split(data: Path, split: str, languages: Languages) -> None:
    """Refuse a directory whose split has no pairs of two languages.

    Raises:
        ValueError: with what there is.
    """
    _find_pair(data, split, languages)


def num_sentences(data: Path, split: str, languages: Languages) -> int:
    """How many pairs a split has.

    Raises:
        ValueError: as :func:`check_split`, or if the binaries are not whole.
    """
    pair = _find_pair(data, split, languages)
    name = f"{split}.{'-'.join(pair)}.{languages[1]}"
    pairs = data_utils.load_indexed_dataset(str(data / name), None)
    if pairs is None:
        raise ValueError(f"{data} lacks binaries of {name}: prepare it again")
    return len(pairs)


def raw_reference(data: Path, split: str, language: str) -> Path:
    """The untokenised text of a split in a language, which data-prep writes beside the binaries.

    Raises:
        ValueError: if there is no such text.
    """
    path = data / "raw" / f"{split}.{language}"
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


def _find_pair(data: Path, split: str, languages: Languages) -> Languages:
    """Two languages in the order in which the files of a split name them, as fairseq looks for them."""
    pairs = _named_pairs(data, split)
    for pair in (languages, languages[::-1]):
        if pair in pairs:
            return pair
    named = ", ".join("-".join(pair) for pair in pairs)
    raise ValueError(
        f"{data} has no {split} set of {languages[0]} and {languages[1]}, which the model translates, but of {named}: "
        "give the folder of these two languages"
    )


def _named_pairs(data: Path, split: str) -> List[Languages]:
    """Pairs of languages of a split, at least one."""
    check_data_folder(data)
    names = [re.fullmatch(r"(.+)\.([^.-]+)-([^.-]+)\.\3\.idx", path.name) for path in sorted(data.glob("*.idx"))]
    found = [name for name in names if name]
    pairs = [(name[2], name[3]) for name in found if name[1] == split]
    if not pairs:
        splits = sorted({name[1] for name in found})
        taken = f"take one of {', '.join(splits)}" if splits else "it holds no pairs"
        raise ValueError(f"{data} has no {split} set: {taken}")
    return pairs
