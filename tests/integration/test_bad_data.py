"""Damaged dictionaries, binarised text and subword codes: a command ends with a line that names file and cause."""

import json
import re
import struct

import fairseq_cli.eval_lm
import fairseq_cli.train
import pytest
from binarised_data import copy_data
from commands import training_arguments
from paths import SMALL_MODELS
from typed_commands import type_command

from fairseq_plugins.fairseq_patches import data as data_module

LM, DATA = SMALL_MODELS / "lstm_lm_doc.pt", SMALL_MODELS / "data/lm"
LENGTHS = 26  # where they begin in an index


@pytest.fixture
def damaged(tmp_path):
    """``damaged(file, content)``: a copy of a folder with another file of this name."""

    def damaged(file, content):
        copy = copy_data(DATA, tmp_path / "data")
        (copy / file).write_bytes(content)
        return copy

    return damaged


@pytest.mark.parametrize(
    "file, content",
    [
        ("bpe.codes", b""),
        ("bpe.codes", b"#version: 0.2\na b c\n"),
        ("bpe.codes", b"#version: 0.2\nx \xe9</w>\n"),
        ("sentencepiece.bpe.model", b"nothing that was learnt"),
    ],
)
def test_damaged_subwords_are_named(file, content, damaged, refuse):
    folder = damaged(file, content)
    (folder / "text.json").write_text('{"tokenizer": "blanks", "case": "kept"}')
    line = refuse("lm score", folder, "--path", LM, typed="a b\n")
    assert line.startswith(f"{folder / file} is damaged: copy it again, or run the corpus' data-prep")


def cut_elsewhere(index):
    """The index of the same text with a first line that is longer by a word, and a second that is shorter."""
    (num,) = struct.unpack_from("<Q", index, LENGTHS - 8)
    lengths = [*struct.unpack_from(f"<{num}i", index, LENGTHS)]
    lengths[:2] = lengths[0] + 1, lengths[1] - 1
    places = [2 * sum(lengths[:line]) for line in range(num)]
    return index[:LENGTHS] + struct.pack(f"<{num}i", *lengths) + struct.pack(f"<{num}q", *places)


def reorder(rows):
    return b"".join(rows.splitlines(keepends=True)[::-1])


CHANGES = {"dict.txt": reorder, "test.bin": lambda text: text[2:4] + text[2:], "test.idx": cut_elsewhere}
"""By which a file remains one that can be read."""


@pytest.fixture
def trained_on(tmp_path, run_here):
    """A copy of the data that a model was trained on."""
    folder = copy_data(DATA, tmp_path / "trained on")
    run_here(fairseq_cli.train, *training_arguments(folder, tmp_path / "model", "--max-update", 1))
    return folder


def test_data_that_changed_after_the_first_training_are_named(trained_on, run_here, refuse, tmp_path):
    assert json.loads((trained_on / "digests.json").read_text()).keys() == {path.name for path in DATA.iterdir()} - {
        "digests.json"
    }
    model = tmp_path / "model/checkpoint_last.pt"
    for file, change in CHANGES.items():
        whole = (trained_on / file).read_bytes()
        (trained_on / file).write_bytes(change(whole))
        assert (trained_on / file).read_bytes() != whole
        told = f"{trained_on / file} is not as it was when {trained_on / 'digests.json'} was written: it is damaged or"
        assert refuse("lm eval", trained_on, "--path", model, "--cpu").startswith(told)
        assert refuse("ngram train", trained_on, "--split", "test", "--out", tmp_path / "new").startswith(told)
        with pytest.raises(ValueError, match=f"^{re.escape(told)}") as error:
            run_here(fairseq_cli.eval_lm, trained_on, "--path", model, "--gen-subset", "test", "--batch-size", 2)
        assert len(str(error.value).splitlines()) == 1
        (trained_on / file).write_bytes(whole)
    type_command("lm eval", [str(trained_on), "--path", str(model), "--cpu"])
    (trained_on / file).write_bytes(change(whole))
    (trained_on / "digests.json").unlink()  # the way out where the text was meant to change
    type_command("lm eval", [str(trained_on), "--path", str(model), "--cpu"])


def test_a_folder_that_cannot_be_written_to_is_trained_on(run_here, monkeypatch, tmp_path):
    def write_json(path, text):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(data_module, "write_json", write_json)
    folder = copy_data(DATA, tmp_path / "data")
    told = run_here(fairseq_cli.train, *training_arguments(folder, tmp_path / "model", "--max-update", 1))
    assert f"{folder} keeps no digests of its files (Permission denied)" in told
    assert not (folder / "digests.json").exists() and (tmp_path / "model/checkpoint_last.pt").exists()


def test_damaged_digests_are_named(damaged, refuse):
    folder = damaged("digests.json", b"[")
    line = refuse("lm eval", folder, "--path", LM, "--cpu")
    assert line == f"{folder}/digests.json is damaged: copy it again, or remove it"
