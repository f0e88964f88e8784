"""Flags of stateful language modelling."""

from dataclasses import dataclass, field
from typing import Optional

from fairseq.dataclass import FairseqDataclass
from omegaconf import II

from fairseq_plugins.data.row_offsets import ROW_OFFSETS
from fairseq_plugins.flags.choices import choices

WindowLengths = choices(["fixed", "random"])
RowOffsets = choices(ROW_OFFSETS)


@dataclass
class StatefulLanguageModelingConfig(FairseqDataclass):
    """Flags of ``--task stateful_lm``."""

    data: Optional[str] = field(
        default=None, metadata={"help": "directory that fairseq-preprocess --only-source wrote"}
    )
    tokens_per_sample: int = field(
        default=70, metadata={"help": "window of truncated back-propagation through time, in tokens"}
    )
    window_lengths: WindowLengths = field(
        default="fixed",
        metadata={
            "help": "fixed: every window has --tokens-per-sample tokens; random: training windows are drawn around "
            "it and the learning rate of an update is scaled by length / --tokens-per-sample"
        },
    )
    max_window: Optional[int] = field(
        default=None, metadata={"help": "longest random window, in tokens (default: no limit)"}
    )
    row_offsets: RowOffsets = field(
        default="none",
        metadata={
            "help": "random: partial shuffle, in every epoch each row of the training text begins at another token and "
            "goes on with its start after its end; none: where it was cut"
        },
    )
    row_groups: int = field(
        default=1,
        metadata={
            "help": "groups into which the rows of a process are cut for training; they are computed one after the "
            "other, each with dropout masks of its own, and make one update"
        },
    )
    seed: int = II("common.seed")
    train_subset: str = II("dataset.train_subset")
    valid_subset: str = II("dataset.valid_subset")
