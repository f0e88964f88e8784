"""Checkpoints that are damaged, refused, or of another model."""

import inspect
import io
import pickle
import random
import zipfile
from argparse import Namespace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import torch
from builders import build_tiny_transformer
from fairseq import checkpoint_utils
from fairseq.distributed import utils as distributed_utils
from fairseq.trainer import Trainer
from omegaconf import OmegaConf
from paths import SMALL_MODELS

from fairseq_plugins.fairseq_patches.checkpoints import (
    BROADCAST_CLASSES,
    MS_DOS_DIRECTORY,
    _load_and_compare_flags,
    read_flags,
)
from fairseq_plugins.options import UserError


class TouchesAFile:
    """Runs code when it is unpickled, as a hostile checkpoint would."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return partial(open, self.path, "w"), ()


def test_checkpoint_that_runs_code_is_refused_by_file_and_class(tmp_path, save_checkpoint):
    canary = tmp_path / "canary"
    path = save_checkpoint(trap=TouchesAFile(str(canary)))
    with pytest.raises(ValueError, match="functools.partial") as error:
        checkpoint_utils.load_checkpoint_to_cpu(path)
    assert str(error.value).startswith(path)
    assert not canary.exists()


@pytest.mark.parametrize(
    "other, name",
    [(torch.nn.Linear(1, 1), "torch.nn.modules.linear.Linear"), (OmegaConf.create({"a": 1}), "omegaconf.dictconfig")],
)
def test_other_class_is_refused_by_name(other, name, save_checkpoint):
    with pytest.raises(ValueError, match=f"refused: it holds an object of class {name}"):
        checkpoint_utils.load_checkpoint_to_cpu(save_checkpoint(cfg=other))


NO_CHECKPOINTS = [b"hello", b"\x80\x02K\x01.", b"PK\x03\x04" + bytes(100), bytes(5000)]


@pytest.mark.parametrize("content", [*map(slice, (0, 1, 4, 100, 5000)), *NO_CHECKPOINTS], ids=str)
def test_a_truncated_checkpoint_and_another_file_are_named(content, save_checkpoint):
    path = Path(save_checkpoint(weight=torch.zeros(3000)))
    path.write_bytes(path.read_bytes()[content] if isinstance(content, slice) else content)
    with pytest.raises(ValueError, match=f"{path} is no checkpoint or was cut short"):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))


ARCHIVES = {
    "weights": partial(torch.save, {"weight": torch.zeros(3)}),
    "a list": partial(torch.save, [1, 2]),
    "a list in place of weights": partial(torch.save, {"model": [1]}),
    "a number in place of a weight": partial(torch.save, {"model": {"weight": 1}}),
    "TorchScript": lambda path: torch.jit.script(torch.nn.Linear(1, 1)).save(path),
    "numpy": lambda path: numpy.savez(path.open("wb"), weights=numpy.zeros(3)),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "error:.*TorchScript archive:UserWarning")
@pytest.mark.parametrize("write", ARCHIVES.values(), ids=ARCHIVES)
def test_another_archive_is_no_checkpoint_and_no_advice_of_torch_is_shown(write, tmp_path):
    path = tmp_path / "weights.pt"
    write(path)
    with pytest.raises(ValueError) as error:
        checkpoint_utils.load_checkpoint_to_cpu(str(path))
    message = "holds no checkpoint of fairseq-train: give one, such as SAVE_DIR/checkpoint_best.pt"
    assert str(error.value) == f"{path} {message}" and error.value.__cause__ is None


def test_missing_checkpoint_stays_a_missing_file():
    with pytest.raises(OSError):
        checkpoint_utils.load_checkpoint_to_cpu("/nowhere/checkpoint.pt")


def flip(path, *positions):
    """Flip one bit of each of some bytes."""
    content = bytearray(Path(path).read_bytes())
    for position in positions:
        content[position] ^= 1 << position % 8
    Path(path).write_bytes(content)


def test_a_flipped_bit_of_the_weights_is_told_by_file_and_record_and_fairseq_alone_reads_it(save_checkpoint):
    weight = torch.rand(3000)
    path = save_checkpoint(weight=weight)
    with zipfile.ZipFile(path) as archive:
        record = max(archive.infolist(), key=lambda record: record.file_size)
    flip(path, record.header_offset + 200)
    with pytest.raises(ValueError, match=r"is damaged \(its record checkpoint/data/0 is not as it was written\): take"):
        checkpoint_utils.load_checkpoint_to_cpu(path)
    assert not torch.equal(inspect.unwrap(checkpoint_utils.load_checkpoint_to_cpu)(path)["weight"], weight)


@pytest.mark.parametrize("num_bits", [1, 50])
def test_flipped_bits_are_harmless_or_told(save_checkpoint, num_bits):
    weights = [torch.rand(30 + n) for n in range(3)]
    path = save_checkpoint(weights=weights)
    content = Path(path).read_bytes()
    generator, num_refused = random.Random(num_bits), 0
    for _ in range(300):
        Path(path).write_bytes(content)
        flip(path, *generator.sample(range(len(content)), num_bits))
        try:
            loaded = checkpoint_utils.load_checkpoint_to_cpu(path)["weights"]
        except ValueError as error:
            num_refused += 1
            assert path in str(error)
        else:  # between the records nobody reads
            assert all(torch.equal(one, two) for one, two in zip(loaded, weights))
    assert num_refused > 150


def test_a_record_that_claims_to_be_a_directory_is_not_read_as_zeros(save_checkpoint):
    path = save_checkpoint(weight=torch.rand(300))
    content = bytearray(Path(path).read_bytes())
    attributes = content.rindex(b"PK\x01\x02", 0, content.rindex(b"checkpoint/data/0")) + 38
    content[attributes] |= MS_DOS_DIRECTORY
    Path(path).write_bytes(content)
    with pytest.raises(ValueError, match="is damaged"):
        checkpoint_utils.load_checkpoint_to_cpu(path)


def test_checkpoints_without_checksums_are_loaded(save_checkpoint):
    weight = torch.rand(30)
    with_checksums = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        path = save_checkpoint(weight=weight)
    finally:
        torch.serialization.set_crc32_options(with_checksums)
    assert torch.equal(checkpoint_utils.load_checkpoint_to_cpu(path)["weight"], weight)


def test_checkpoints_of_the_format_before_archives_are_loaded(save_checkpoint, tmp_path):
    state = torch.load(save_checkpoint(weight=torch.rand(30)))
    path = str(tmp_path / "old.pt")
    torch.save(state, path, _use_new_zipfile_serialization=False)
    assert torch.equal(checkpoint_utils.load_checkpoint_to_cpu(path)["weight"], state["weight"])


def test_checkpoint_with_a_namespace_is_read_unlike_by_fairseq_alone(save_checkpoint):
    path = save_checkpoint(args=Namespace(arch="lstm_lm_awd"))
    assert torch.load(path)["args"].arch == "lstm_lm_awd"
    allowed = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    try:
        with pytest.raises(pickle.UnpicklingError, match="argparse.Namespace"):
            torch.load(path)
    finally:
        torch.serialization.add_safe_globals(allowed)


DRILL = SMALL_MODELS / "transformer_drill.pt"


def resume(start=None, **flags):
    """Resume from a Transformer with other flags, as far as flags are compared."""
    model = Namespace(**{**vars(read_flags(str(DRILL))["cfg"]["model"]), **flags})
    checkpoint = SimpleNamespace(finetune_from_model=start)
    trainer = SimpleNamespace(cfg=SimpleNamespace(model=model, checkpoint=checkpoint), task=None)
    _load_and_compare_flags(lambda *_: {}, trainer, str(DRILL))


def test_flags_that_change_the_function_of_the_weights_are_refused():
    resume(dropout=0.3, max_source_positions=9, encoder_embed_path="a")
    with pytest.raises(UserError, match="with --decoder-attention-heads 2, this model has 4; .*without --no-scale-emb"):
        resume(decoder_attention_heads=4, no_scale_embedding=True)
    for start, remedy in ((None, "another --save-dir"), (str(DRILL), "leave out --finetune-from-model")):
        with pytest.raises(UserError, match=f"that it was trained with, or {remedy}$"):
            resume(start, decoder_attention_heads=4)


def test_fairseq_alone_takes_other_flags():
    """It compares shapes."""
    one, two = (build_tiny_transformer("transformer_full", decoder_attention_heads=n) for n in (1, 2))
    two.load_state_dict(one.state_dict(), strict=True)
    inputs = torch.tensor([[4, 5, 2]]), torch.tensor([3]), torch.tensor([[2, 5, 6]])
    assert not torch.allclose(*(model.eval()(*inputs)[0] for model in (one, two)))


@pytest.fixture
def trainer():
    """The attributes of a trainer that ``Trainer.load_checkpoint`` reads; its model refuses every checkpoint."""

    def refuse(*args, **kwargs):
        raise UserError("the reason and the remedy")

    cfg = SimpleNamespace(
        model=None,
        checkpoint=SimpleNamespace(load_checkpoint_on_all_dp_ranks=False),
        distributed_training=SimpleNamespace(zero_sharding="none"),
        ema=SimpleNamespace(store_ema=False),
    )
    model = SimpleNamespace(set_num_updates=lambda num_updates: None, load_state_dict=refuse)
    return SimpleNamespace(
        cfg=cfg, model=model, data_parallel_world_size=1, data_parallel_rank=0, tpu=False, is_fsdp=False
    )


def test_the_reason_of_a_model_that_refuses_weights_is_shown_and_fairseq_alone_hides_it(trainer, save_checkpoint):
    with pytest.raises(UserError, match="^the reason and the remedy$"):
        Trainer.load_checkpoint(trainer, save_checkpoint())
    with pytest.raises(Exception, match="please ensure that the architectures match.$") as message:
        inspect.unwrap(Trainer.load_checkpoint)(trainer, save_checkpoint())
    assert type(message.value) is Exception


def test_of_several_models_the_one_that_does_not_fit_is_named(tmp_path):
    good, bad = SMALL_MODELS / "lstm_lm_doc.pt", tmp_path / "bad.pt"
    overrides = {"data": str(SMALL_MODELS / "data/lm")}
    models, config, task = checkpoint_utils.load_model_ensemble_and_task([str(good), str(good)], overrides)
    assert len(models) == 2 and config.task._name == "stateful_lm" and len(task.dictionary) == 24
    state = torch.load(good)
    del state["model"]["decoder.embedding.weight"]
    torch.save(state, bad)
    with pytest.raises(ValueError, match="bad.pt .*embedding"):
        checkpoint_utils.load_model_ensemble_and_task([str(good), str(bad)], overrides)


class Channel:
    """Passes the message of the first of two processes to the second; both run in this process."""

    def __init__(self, monkeypatch):
        self.sent, self.rank = [], 0
        monkeypatch.setattr(distributed_utils, "get_rank", lambda group: self.rank)
        monkeypatch.setattr(distributed_utils, "broadcast", self.broadcast)
        monkeypatch.setattr(distributed_utils, "broadcast_tensors", lambda tensors, *args: tensors)

    def broadcast(self, tensor, src, group):
        if self.rank == src:
            self.sent.append(tensor.clone())
        else:
            tensor.copy_(self.sent.pop(0))


def test_a_configuration_arrives_unlike_by_fairseq_alone(monkeypatch):
    channel, device = Channel(monkeypatch), torch.device("cpu")
    checkpoint = {"cfg": OmegaConf.create({"model": {"arch": "lstm_lm_awd"}, "lr": [0.5]}), "epoch": 3}
    for _ in range(2):
        distributed_utils.broadcast_object(checkpoint, src_rank=0, group=None, dist_device=device)
    channel.rank = 1
    assert distributed_utils.broadcast_object(None, src_rank=0, group=None, dist_device=device) == checkpoint
    with pytest.raises(pickle.UnpicklingError, match="omegaconf"):
        distributed_utils.broadcast_object.__wrapped__(None, 0, None, device)


def test_the_classes_are_allowed_meanwhile_only():
    buffer = io.BytesIO()
    torch.save(OmegaConf.create({"a": 1}), buffer)
    with torch.serialization.safe_globals(BROADCAST_CLASSES):
        assert torch.load(io.BytesIO(buffer.getvalue())) == {"a": 1}
    with pytest.raises(pickle.UnpicklingError):
        torch.load(io.BytesIO(buffer.getvalue()))
