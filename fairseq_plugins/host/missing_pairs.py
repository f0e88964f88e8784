"""A folder that lacks the sentence pairs of a translation task is refused, with the remedy.

Mends: the host lets a traceback say that it found no pair of languages, no such folder or no such split.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_the_host_alone_names_no_remedy`` passes.
"""

from typing import Any, Callable, List, Optional, Sequence

from fairseq.data import data_utils
from fairseq.tasks import translation

from fairseq_plugins.host.wrapping import wrap

REMEDY = "give the directory that data-prep or fairseq-preprocess wrote for two languages"


def mend() -> None:
    """Wrap the host's ``infer_language_pair`` and ``load_langpair_dataset``, which its task of translation calls."""
    wrap(data_utils, "infer_language_pair", _find_pair)
    wrap(translation, "load_langpair_dataset", _load_split)


def _find_pair(infer_language_pair: Callable[[str], Sequence[Optional[str]]], path: str) -> List[str]:
    """Source and target language that the names of a folder's files tell.

    Raises:
        ValueError: if they tell none.
    """
    try:
        languages = [language for language in infer_language_pair(path) if language]
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}: {REMEDY}") from error
    if not languages:
        raise ValueError(f"{path} holds no sentence pairs: {REMEDY}")
    return languages


def _load_split(
    load_langpair_dataset: Callable[..., Any], data_path: str, split: str, *args: Any, **kwargs: Any
) -> Any:
    """The sentence pairs of a split.

    Raises:
        ValueError: if there are none.
    """
    try:
        return load_langpair_dataset(data_path, split, *args, **kwargs)
    except FileNotFoundError as error:
        source, _, target = args[:3]
        raise ValueError(
            f"there is no split '{split}' of {source} and {target} in {data_path}: take another split or folder, or "
            "run fairseq-preprocess with its text"
        ) from error
