"""Word counts of a task's training text, for the output layers and criteria that read them.

Shapes: V vocabulary.
"""

from pathlib import Path
from typing import List, Optional

import torch
from fairseq import utils
from torch import Tensor

from fairseq_plugins.data.corpus import is_binarised, split_parts
from fairseq_plugins.data.word_counts import count_words
from fairseq_plugins.models.text_task import TextTask
from fairseq_plugins.output_layers.base import OutputLayer


def provide_word_counts(output_layer: OutputLayer, task: TextTask) -> None:
    """Count the target words of the task's training text, if ``output_layer`` needs that and the text is there.

    Several data directories are one text. Errors in the text are raised when the counts are first read.
    """
    if output_layer.word_counts is None:
        return
    try:
        counts = training_counts(task)
    except ValueError as error:
        output_layer.word_counts.refuse(error)
        return
    if counts is not None:
        output_layer.word_counts.set(counts)


def training_counts(task: TextTask) -> Optional[Tensor]:
    """How often each target word occurs in the task's training text, (V,) int64; None where the text is not there.

    Raises:
        ValueError: if the text cannot be counted, or has a word outside of the vocabulary.
    """
    counts = [count_words(split, len(task.target_dictionary)) for split in training_splits(task)]
    return torch.stack(counts).sum(dim=0) if counts else None


def training_splits(task: TextTask) -> List[Path]:
    """Paths, without suffix, of the binarised target side of the task's training text, as far as they are there."""
    config = task.args if task.cfg is None else task.cfg
    subset = getattr(config, "train_subset", "train")  # the host's language modelling task does not know it
    source, target = getattr(config, "source_lang", None), getattr(config, "target_lang", None)
    suffixes = [""]
    if target is not None:
        suffixes = [f".{source}-{target}.{target}", f".{target}-{source}.{target}"]
    return [
        Path(path) / part
        for path in utils.split_paths(config.data)
        for suffix in suffixes
        for part in split_parts(path, subset, suffix=suffix)
        if is_binarised(Path(path) / part)
    ]
