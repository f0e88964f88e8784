"""Importing the package patches fairseq and registers everything, once."""

import multiprocessing
from argparse import Namespace

import pytest
from fairseq import checkpoint_utils, options, trainer, utils
from fairseq.data import data_utils
from fairseq.data.iterators import EpochBatchIterator
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.optim import AMPOptimizer
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer

import fairseq_plugins
from fairseq_plugins.fairseq_patches import apply_patches

PATCHED = [
    *((checkpoint_utils, "load_checkpoint_to_cpu"), (checkpoint_utils, "load_checkpoint")),
    *((distributed_utils, "broadcast_object"), (distributed_utils, "call_main"), (data_utils, "batch_by_size")),
    *((Trainer, "load_checkpoint"), (PathManager, "copy"), (AMPOptimizer, "step")),
    *((Trainer, "train_step"), (Trainer, "clip_grad_norm"), (trainer, "NanDetector"), (options, "parse_args_and_arch")),
    *((FairseqTask, "filter_indices_by_size"), (EpochBatchIterator, "load_state_dict")),
]


def test_patching_twice_wraps_once():
    before = [getattr(owner, name) for owner, name in PATCHED]
    assert all(hasattr(function, "__wrapped__") for function in before)
    apply_patches()
    assert [getattr(owner, name) for owner, name in PATCHED] == before


def test_user_dir_after_import_registers_nothing_twice():
    registered = dict(ARCH_MODEL_REGISTRY)
    utils.import_user_module(Namespace(user_dir=fairseq_plugins.__path__[0]))
    assert dict(ARCH_MODEL_REGISTRY) == registered


def registered_architectures():
    import fairseq_plugins  # noqa: F401

    return sorted(name for name in ARCH_MODEL_REGISTRY if name.startswith("lstm_lm_"))


@pytest.mark.slow
def test_spawned_process_registers_the_same():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(registered_architectures) == registered_architectures()
