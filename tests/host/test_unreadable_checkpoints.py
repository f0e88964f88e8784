"""Checkpoints that are damaged or refused."""

import inspect
import os
import random
import zipfile
from functools import partial

import pytest
import torch
from fairseq import checkpoint_utils
from omegaconf import OmegaConf

from fairseq_plugins.host.unreadable_checkpoints import MS_DOS_DIRECTORY


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


def test_other_class_is_refused_by_name(save_checkpoint):
    path = save_checkpoint(device=torch.nn.Linear(1, 1))
    with pytest.raises(ValueError, match=r"refused: it holds an object of class torch\.nn\.modules\.linear\.Linear"):
        checkpoint_utils.load_checkpoint_to_cpu(path)


def test_configuration_is_refused(save_checkpoint):
    with pytest.raises(ValueError, match="omegaconf"):
        checkpoint_utils.load_checkpoint_to_cpu(save_checkpoint(cfg=OmegaConf.create({"a": 1})))


@pytest.mark.parametrize("length", [0, 1, 3, 4, 100, 1000, 3000, 5000])
def test_truncated_checkpoint_is_named(save_checkpoint, length):
    path = save_checkpoint(weight=torch.zeros(3000))
    os.truncate(path, length)
    with pytest.raises(ValueError, match="no checkpoint or was cut short") as error:
        checkpoint_utils.load_checkpoint_to_cpu(path)
    assert path in str(error.value)


@pytest.mark.parametrize("content", [b"hello", b"\x80\x02K\x01.", b"PK\x03\x04" + bytes(100), bytes(5000)])
def test_other_file_is_named(tmp_path, content):
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="checkpoint.pt is no checkpoint or was cut short"):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))


@pytest.mark.parametrize("content", [{"weight": torch.zeros(3)}, [1, 2], 3, {"model": {}, "optimizer": {}}])
def test_another_archive_is_no_checkpoint(tmp_path, content):
    path = tmp_path / "weights.pt"
    torch.save(content, path)
    with pytest.raises(ValueError) as error:
        checkpoint_utils.load_checkpoint_to_cpu(str(path))
    told = "holds no checkpoint of fairseq-train: give one, such as SAVE_DIR/checkpoint_best.pt"
    assert str(error.value) == f"{path} {told}"


def test_other_errors_of_a_checkpoint_stay_as_they_are(save_checkpoint):
    path = save_checkpoint(cfg={}, args=None)
    with pytest.raises(TypeError, match="unexpected keyword argument 'no_argument'"):
        checkpoint_utils.load_checkpoint_to_cpu(path, no_argument=1)


def test_missing_checkpoint_stays_a_missing_file():
    with pytest.raises(OSError):
        checkpoint_utils.load_checkpoint_to_cpu("/nowhere/checkpoint.pt")


def flip(path, *positions):
    """Flip one bit of each of some bytes."""
    with open(path, "r+b") as file:
        for position in positions:
            file.seek(position)
            byte = file.read(1)[0]
            file.seek(position)
            file.write(bytes([byte ^ 1 << position % 8]))


def position_of_weights(path):
    """Where the largest record begins, about."""
    with zipfile.ZipFile(path) as archive:
        record = max(archive.infolist(), key=lambda record: record.file_size)
    return record.header_offset + 200


def test_a_flipped_bit_of_the_weights_is_told_by_file_and_record(save_checkpoint):
    path = save_checkpoint(weight=torch.rand(3000))
    flip(path, position_of_weights(path))
    with pytest.raises(ValueError, match=r"is damaged \(its record checkpoint/data/0 is not as it was written\): take"):
        checkpoint_utils.load_checkpoint_to_cpu(path)


def test_the_host_alone_reads_flipped_bits(save_checkpoint):
    weight = torch.rand(3000)
    path = save_checkpoint(weight=weight)
    flip(path, position_of_weights(path))
    assert not torch.equal(inspect.unwrap(checkpoint_utils.load_checkpoint_to_cpu)(path)["weight"], weight)


@pytest.mark.parametrize("num_bits", [1, 50])
def test_flipped_bits_are_harmless_or_told(save_checkpoint, num_bits):
    weights = [torch.rand(30 + n) for n in range(3)]
    path = save_checkpoint(weights=weights)
    with open(path, "rb") as file:
        content = file.read()
    generator, num_refused = random.Random(num_bits), 0
    for _ in range(300):
        with open(path, "wb") as file:
            file.write(content)
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
    with open(path, "rb") as file:
        content = bytearray(file.read())
    attributes = content.rindex(b"PK\x01\x02", 0, content.rindex(b"checkpoint/data/0")) + 38
    content[attributes] |= MS_DOS_DIRECTORY
    with open(path, "wb") as file:
        file.write(content)
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


def test_a_folder_is_told(tmp_path):
    with pytest.raises(ValueError, match=f"{tmp_path} is a folder: give a checkpoint in it"):
        checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path))
