"""A data set of which no sentence is short enough is refused, with the limits.

Mends: the host leaves out what is too long, and where nothing is left fails with an ``IndexError``.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_the_host_alone_leaves_nothing`` passes.
"""

from typing import Any, Callable, Optional, Sized

from fairseq.tasks import FairseqTask

from fairseq_plugins.host.wrapping import wrap


def mend() -> None:
    """Wrap the host's ``FairseqTask.filter_indices_by_size``."""
    wrap(FairseqTask, "filter_indices_by_size", _keep_some)


def _keep_some(
    filter_indices_by_size: Callable[..., Sized],
    task: FairseqTask,
    indices: Sized,
    dataset: Any,
    max_positions: Optional[Any] = None,
    ignore_invalid_inputs: bool = False,
) -> Sized:
    """The sentences that are short enough.

    Raises:
        ValueError: if there are none.
    """
    kept = filter_indices_by_size(task, indices, dataset, max_positions, ignore_invalid_inputs)
    if len(indices) > 0 and len(kept) == 0:
        raise ValueError(
            f"all {len(indices):,} sentences are longer than {max_positions} tokens, the least of --max-tokens, "
            "--max-source-positions and --max-target-positions: raise what is too low"
        )
    return kept
