"""A training that was resumed goes on with the batches that it would have had.

Mends: the host cuts a corpus into batches once per process, seeded by the epoch in which it started, so that a training
that is resumed goes on with other batches; with --update-epoch-batch-itr, set here, it cuts them anew every epoch.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as the host's ``DatasetConfig.update_epoch_batch_itr`` is not true by default.
"""

from typing import Any, Callable

from fairseq.distributed import utils as distributed_utils
from omegaconf import DictConfig

from fairseq_plugins.host.wrapping import wrap


def mend() -> None:
    """Wrap the host's ``call_main``, through which all of its commands run."""
    wrap(distributed_utils, "call_main", _cut_batches_every_epoch)


def _cut_batches_every_epoch(call_main: Callable[..., Any], cfg: DictConfig, *args: Any, **kwargs: Any) -> Any:
    cfg.dataset.update_epoch_batch_itr = True
    return call_main(cfg, *args, **kwargs)
