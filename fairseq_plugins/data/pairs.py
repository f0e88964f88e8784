"""Folders of sentence pairs, as fairseq-preprocess and data-prep write them, and their languages."""

import os
import re
from pathlib import Path
from typing import Any, List, Optional, Tuple

from fairseq.data import data_utils
from torch import Tensor

from fairseq_plugins.data.text import EXPORT_HAS_NO_SPLIT
from fairseq_plugins.files import EXPORT_RECORD, data_folder
from fairseq_plugins.options import UserError, get_flag

Languages = Tuple[str, str]
"""Source and target language."""

GivenLanguages = Tuple[Optional[str], Optional[str]]
"""Source and target language; None means unknown."""


def languages_of(flags: Any) -> GivenLanguages:
    """The two languages in the flags of a task or a run."""
    return get_flag(flags, "source_lang"), get_flag(flags, "target_lang")


def complete_languages(given: GivenLanguages, data: str) -> Languages:
    """Complete the given languages by the pair in a folder, which is read only if a language is missing.

    Raises UserError if the folder holds no pair, several that fit, or not the given language.
    """
    source, target = given
    if source is not None and target is not None:
        return source, target
    names = [name.split(".") for name in os.listdir(data)]  # train.de-en.de.bin
    infixes = [parts[1].split("-") for parts in names if len(parts) > 2]
    pairs = {(infix[0], infix[1]) for infix in infixes if len(infix) == 2}
    if not pairs:
        raise UserError(f"{data} holds no sentence pairs: give the directory that data-prep wrote for two languages")
    named = ", ".join("-".join(pair) for pair in sorted(pairs))
    for flag, language in (("--source-lang", source), ("--target-lang", target)):
        if language is not None and not any(language in pair for pair in pairs):
            raise UserError(f"{flag} {language}: {data} holds {named}: give one of these languages, or both flags")
    is_named = source is not None or target is not None
    directions = {*pairs, *((second, first) for first, second in pairs)} if is_named else pairs
    found = [pair for pair in directions if source in (None, pair[0]) and target in (None, pair[1])]
    if len(found) > 1:
        raise UserError(f"{data} holds {named}: give --source-lang and --target-lang")
    return found[0]


def split_languages(data: Path, split: str) -> Languages:
    """The pair of languages in the file names of a split. A model may translate in the other direction.

    Raises UserError if the directory or the split is missing, or holds pairs of several languages.
    """
    found = _named_pairs(data, split)
    if len(found) > 1:
        languages = ", ".join("-".join(pair) for pair in found)
        raise UserError(f"{data} has {split} sets of several pairs of languages, {languages}: keep them apart")
    return found[0]


def check_split(data: Path, split: str, languages: Languages) -> Languages:
    """Check that a split has pairs of two languages, in either order, as fairseq does.

    Returns:
        the languages in the order of the split's file names.
    """
    pairs = _named_pairs(data, split)
    for pair in (languages, languages[::-1]):
        if pair in pairs:
            return pair
    named = ", ".join("-".join(pair) for pair in pairs)
    raise UserError(
        f"{data} has no {split} set of {languages[0]} and {languages[1]}, which the model translates, but of {named}: "
        "give the folder of these two languages"
    )


def num_sentences(data: Path, split: str, languages: Languages) -> int:
    """Number of pairs of a split. Raises UserError as :func:`check_split`, or if the binaries are not whole."""
    pair = check_split(data, split, languages)
    name = f"{split}.{'-'.join(pair)}.{languages[1]}"
    pairs = data_utils.load_indexed_dataset(str(data / name), None)
    if pairs is None:
        raise UserError(f"{data} lacks binaries of {name}: prepare it again")
    return len(pairs)


def raw_reference(
    data: Path, split: str, language: str, *, remedy: str = "name the raw reference text with --reference"
) -> Path:
    """The untokenised text of a split in a language, which data-prep writes beside the binaries.

    Raises UserError, with the remedy, if there is no such text.
    """
    path = data / "raw" / f"{split}.{language}"
    if not path.is_file():
        raise UserError(f"{path} does not exist: {remedy}")
    return path


def split_pairs(task: Any, split: str) -> Tuple[List[Tensor], List[Tensor]]:
    """Sources and targets of a split, each (n,) with its end mark.

    ``task`` is that of a translator. Raises UserError if its folder has no such split.
    """
    check_split(Path(task.cfg.data), split, (task.cfg.source_lang, task.cfg.target_lang))
    task.load_dataset(split)
    pairs = task.dataset(split)
    sources, targets = ([side[number] for number in range(len(pairs))] for side in (pairs.src, pairs.tgt))
    return sources, targets


def _named_pairs(data: Path, split: str) -> List[Languages]:
    """Pairs of languages of a split, at least one."""
    data_folder(str(data))
    names = [re.fullmatch(r"(.+)\.([^.-]+)-([^.-]+)\.\3\.idx", path.name) for path in sorted(data.glob("*.idx"))]
    found = [name for name in names if name]
    pairs = [(name[2], name[3]) for name in found if name[1] == split]
    if not pairs:
        splits = sorted({name[1] for name in found})
        taken = f"take one of {', '.join(splits)}" if splits else "it holds no pairs"
        if (data / EXPORT_RECORD).is_file():
            taken = EXPORT_HAS_NO_SPLIT
        raise UserError(f"{data} has no {split} set: {taken}")
    return pairs
