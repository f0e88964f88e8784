"""A path with a colon in it is one path, where it exists.

Patches: fairseq splits ``--path`` and DATA at every colon, so that the checkpoint and the data of a folder such as
``runs/2024-01-01T10:00:00`` are looked for in two places. Lists joined by colons are still split.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_fairseq_alone_splits_at_every_colon`` passes.
"""

import os
from typing import Any, Callable, List

from fairseq import utils
from fairseq.tasks.fairseq_task import FairseqTask, LegacyFairseqTask

from fairseq_plugins.host.wrapping import wrap


def mend() -> None:
    """Wrap ``split_paths``, with which fairseq reads all lists of paths, and what tells shards from one folder."""
    wrap(utils, "split_paths", _split_where_nothing_exists)
    for task in (FairseqTask, LegacyFairseqTask):
        wrap(task, "has_sharded_data", _has_several_folders)


def _split_where_nothing_exists(
    split_paths: Callable[..., List[str]], paths: str, separator: str = os.pathsep
) -> List[str]:
    """The paths of a list; from left to right, the longest part of it that exists is one path."""
    if os.path.exists(paths):
        return [paths]
    parts = split_paths(paths, separator)
    if "://" in paths:  # addresses, which fairseq joins by another sign
        return parts
    found: List[str] = []
    while parts:
        joined = [separator.join(parts[:number]) for number in range(len(parts), 1, -1)]
        found.append(next(filter(os.path.exists, joined), parts[0]))
        parts = parts[found[-1].count(separator) + 1 :]
    return found


def _has_several_folders(has_sharded_data: Callable[..., bool], task: Any, split: str) -> bool:
    config = task.args if isinstance(task, LegacyFairseqTask) else task.cfg
    return has_sharded_data(task, split) and len(utils.split_paths(config.data)) > 1
