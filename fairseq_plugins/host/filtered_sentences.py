"""A data set of which no sentence is short enough is refused, with the limits, and one that may leave none out.

Mends: the host leaves out what is too long, and where nothing is left fails with an ``IndexError``; where it may leave
out none, it raises an ``Exception``, which ends with a traceback.
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
        ValueError: if there are none, or if none may be left out and one is too long.
    """
    limit = f"than {max_positions} tokens, the least of --max-tokens, --max-source-positions and --max-target-positions"
    if not ignore_invalid_inputs:
        num_too_long = len(dataset.filter_indices_by_size(indices, max_positions)[1])
        if 0 < num_too_long < len(indices):
            raise ValueError(
                f"{num_too_long:,} of {len(indices):,} sentences are longer {limit}: raise what is too low, or give "
                "--skip-invalid-size-inputs-valid-test, which leaves them out"
            )
        ignore_invalid_inputs = True  # there are none, or all are
    kept = filter_indices_by_size(task, indices, dataset, max_positions, ignore_invalid_inputs)
    if len(indices) > 0 and len(kept) == 0:
        raise ValueError(f"all {len(indices):,} sentences are longer {limit}: raise what is too low")
    return kept
