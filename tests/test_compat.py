import multiprocessing
import os
from argparse import Namespace
from functools import partial

import numpy
import pytest
import torch
from fairseq import checkpoint_utils, utils
from fairseq.data import data_utils
from fairseq.file_io import PathManager
from fairseq.models import ARCH_MODEL_REGISTRY
from torch.utils.data import DataLoader

import fairseq_plugins
from fairseq_plugins import compat
from fairseq_plugins.data.contiguous_streams import ContiguousStreams
from fairseq_plugins.data.windows import fixed_windows


class TouchesAFile:
    """Runs code when it is unpickled, as a hostile checkpoint would."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return partial(open, self.path, "w"), ()


def save(tmp_path, **content):
    path = tmp_path / "checkpoint.pt"
    torch.save({"model": {}, "extra_state": {"train_iterator": {}}, **content}, path)
    return str(path)


def test_checkpoint_with_a_namespace_is_read(tmp_path):
    state = torch.load(save(tmp_path, args=Namespace(arch="lstm_lm_awd")))
    assert state["args"].arch == "lstm_lm_awd"


def test_checkpoint_that_runs_code_is_refused_by_file_and_class(tmp_path):
    canary = tmp_path / "canary"
    path = save(tmp_path, trap=TouchesAFile(str(canary)))
    with pytest.raises(ValueError, match="functools.partial") as error:
        checkpoint_utils.load_checkpoint_to_cpu(path)
    assert str(error.value).startswith(path)
    assert not canary.exists()


def test_other_class_is_refused_by_name(tmp_path):
    path = save(tmp_path, device=torch.nn.Linear(1, 1))
    with pytest.raises(ValueError, match=r"refused: it holds an object of class torch\.nn\.modules\.linear\.Linear"):
        checkpoint_utils.load_checkpoint_to_cpu(path)


@pytest.mark.parametrize("length", [0, 1, 100, 1000, 3000, 5000])
def test_truncated_checkpoint_is_named(tmp_path, length):
    path = save(tmp_path, weight=torch.zeros(3000))
    os.truncate(path, length)
    with pytest.raises(ValueError, match="no checkpoint or was cut short") as error:
        checkpoint_utils.load_checkpoint_to_cpu(path)
    assert path in str(error.value)


def test_missing_checkpoint_stays_a_missing_file():
    with pytest.raises(FileNotFoundError):
        checkpoint_utils.load_checkpoint_to_cpu("/nowhere/checkpoint.pt")


def test_broadcast_classes_are_not_allowed_in_files(tmp_path):
    from omegaconf import OmegaConf

    path = save(tmp_path, cfg=OmegaConf.create({"a": 1}))
    with pytest.raises(ValueError, match="omegaconf"):
        checkpoint_utils.load_checkpoint_to_cpu(path)


def test_adapting_twice_wraps_once():
    before = checkpoint_utils.load_checkpoint_to_cpu
    compat.adapt_host()
    assert checkpoint_utils.load_checkpoint_to_cpu is before
    assert not hasattr(before.__wrapped__, "__wrapped__")


def test_user_dir_after_import_registers_nothing_twice():
    registered = dict(ARCH_MODEL_REGISTRY)
    utils.import_user_module(Namespace(user_dir=fairseq_plugins.__path__[0]))
    assert dict(ARCH_MODEL_REGISTRY) == registered


def registered_architectures():
    import fairseq_plugins  # noqa: F401

    return sorted(name for name in ARCH_MODEL_REGISTRY if name.startswith("lstm_lm_"))


def test_spawned_process_registers_the_same():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(registered_architectures) == registered_architectures()


def test_loading_workers_serve_the_windows_in_order():
    streams = ContiguousStreams(torch.arange(200), num_rows=2, first_row=0, num_own_rows=2)
    batches = [[window] for window in fixed_windows(streams.num_predictions_per_row, length=7)]
    loader = DataLoader(streams, batch_sampler=batches, collate_fn=streams.collater, num_workers=2)
    served = torch.cat([batch["target"] for batch in loader], dim=1)
    assert torch.equal(served, torch.stack([torch.arange(1, 100), torch.arange(101, 200)]))


def test_a_checkpoint_is_copied_aside_and_renamed(tmp_path, monkeypatch):
    source, target = tmp_path / "checkpoint1.pt", tmp_path / "checkpoint_last.pt"
    source.write_text("new")
    target.write_text("old")
    seen = []
    monkeypatch.setattr(os, "replace", lambda a, b: seen.append((target.read_text(), open(a).read())))
    PathManager.copy(str(source), str(target), overwrite=True)
    assert seen == [("old", "new")], "until the whole copy is written, the old checkpoint must stand"


@pytest.mark.parametrize("num_sentences", [1, 7, 8, 10, 1014])
@pytest.mark.parametrize("limits", [dict(max_tokens=60), dict(max_sentences=16), dict(max_tokens=100, max_sentences=9)])
def test_every_sentence_is_in_a_batch(num_sentences, limits):
    lengths = numpy.sort(numpy.random.RandomState(1).randint(1, 12, num_sentences))
    for indices in (numpy.arange(num_sentences), iter(range(num_sentences))):
        batches = data_utils.batch_by_size(
            indices, lambda n: lengths[n], num_tokens_vec=lengths, required_batch_size_multiple=8, **limits
        )
        assert [n for batch in batches for n in batch] == list(range(num_sentences))
        for batch in batches:
            assert len(batch) <= limits.get("max_sentences", num_sentences)
            assert len(batch) * lengths[batch].max() <= limits.get("max_tokens", 10**6)
