"""Patches of training in several processes: errors and hangs of one process do not make the others wait forever."""

import os
from contextlib import contextmanager
from typing import Any, Callable, ContextManager, Dict, Iterator, List
from weakref import WeakKeyDictionary

import torch
from fairseq.dataclass.configs import CheckpointConfig
from fairseq.distributed import LegacyDistributedDataParallel
from fairseq.distributed import utils as distributed_utils
from fairseq.trainer import Trainer

from fairseq_plugins.fairseq_patches import wrap
from fairseq_plugins.options import UserError


def is_saving(cfg: CheckpointConfig, trainer: Trainer) -> bool:
    """Whether this process writes to ``--save-dir``: the first of a run that saves."""
    return not cfg.no_save and distributed_utils.is_master(trainer.cfg.distributed_training)


Logged = List[Dict[str, Any]]

_last_logged: "WeakKeyDictionary[Trainer, Logged]" = WeakKeyDictionary()
"""For each trainer, the log of its last update that has a log."""


def patch_out_of_memory() -> None:
    """Let a process that ran out of memory go on with the others.

    Problem: fairseq's ``legacy_ddp`` shares no gradients while ``--update-freq`` accumulates them. An error in that
        phase, which the trainer ignores, leaves sharing off, and the other processes wait forever. fairseq sums logs
        over all processes, by the names that each process has logged itself. A process that ran out of memory has
        logged nothing: sums are mixed up, or the processes wait forever.
    Patch: wrap ``LegacyDistributedDataParallel.no_sync`` to restore the state after an error, and
        ``Trainer._fast_stat_sync_sum`` to log zeros in that process. Wrappers that share gradients during the backward
        pass, such as fairseq's ``pytorch_ddp``, are not patched.
    Needed while ``test_gradients_are_shared_again_after_an_error_unlike_by_fairseq_alone`` and
    ``test_zeros_are_shared_where_nothing_was_logged`` pass.
    """
    wrap(LegacyDistributedDataParallel, "no_sync", _restore_after_error)
    wrap(Trainer, "_fast_stat_sync_sum", _log_zeros)


@contextmanager
def _restore_after_error(
    no_sync: Callable[[LegacyDistributedDataParallel], ContextManager[None]], module: LegacyDistributedDataParallel
) -> Iterator[None]:
    accumulates = module.accumulate_grads
    try:
        with no_sync(module):
            yield
    finally:
        module.accumulate_grads = accumulates


def _log_zeros(
    sync: Callable[..., Any], trainer: Trainer, logged: Logged, *extra_stats: Any, ignore: bool = False
) -> Any:
    """Sum the logs of all processes. Without a log, send zeros under the names of an earlier update."""
    if logged:
        if trainer.get_model().training:
            _last_logged[trainer] = logged[:1]
        return sync(trainer, logged, *extra_stats, ignore=ignore)
    if trainer not in _last_logged:
        raise UserError("memory ran out in the first batch: lower --batch-size or --max-tokens")
    return sync(trainer, _last_logged[trainer], *extra_stats, ignore=True)


def patch_torchrun() -> None:
    """Train in the processes that ``torchrun`` starts on CPUs.

    Problem: fairseq counts GPUs to find out whether there are several processes. On CPUs each process of ``torchrun``
        trains a model by itself, and their checkpoints replace each other.
    Patch: wrap ``call_main`` to take the number of processes from the environment.
    Needed while ``test_processes_of_torchrun_train_one_model_on_cpus_unlike_by_fairseq_alone`` passes.
    """
    wrap(distributed_utils, "call_main", _take_processes)


def _take_processes(call_main: Callable[..., Any], cfg: Any, *args: Any, **kwargs: Any) -> Any:
    on_cpus = cfg.common.cpu or not torch.cuda.is_available()
    distributed = cfg.distributed_training
    if on_cpus and "TORCHELASTIC_RUN_ID" in os.environ and distributed.distributed_init_method is None:
        distributed.distributed_init_method, distributed.distributed_no_spawn = "env://", True
        distributed.distributed_world_size = int(os.environ["WORLD_SIZE"])
        distributed.distributed_rank = int(os.environ["RANK"])
        distributed.distributed_backend, distributed.ddp_backend = "gloo", "legacy_ddp"
    return call_main(cfg, *args, **kwargs)
