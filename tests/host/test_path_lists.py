"""Lists of paths that are joined by colons, and paths with colons."""

from argparse import Namespace

import pytest
from fairseq import utils
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.translation import TranslationTask

import fairseq_plugins  # noqa: F401


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("10:00", "11:00", "12"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.pt").touch()


@pytest.mark.parametrize(
    "text, expected",
    [
        ("10:00/a.pt", ["10:00/a.pt"]),
        ("10:00/a.pt:11:00/a.pt", ["10:00/a.pt", "11:00/a.pt"]),
        ("12/a.pt:10:00/a.pt:12/a.pt", ["12/a.pt", "10:00/a.pt", "12/a.pt"]),
        ("12/a.pt:none.pt:10:00", ["12/a.pt", "none.pt", "10:00"]),
        ("none/10:00/a.pt", ["none/10", "00/a.pt"]),
        ("12:", ["12", ""]),
        ("", [""]),
        ("s3://a|s3://b:c", ["s3://a", "s3://b:c"]),
    ],
)
def test_what_exists_is_one_path(text, expected):
    assert utils.split_paths(text) == expected


@pytest.mark.parametrize("data, has_shards", [("12", False), ("10:00", False), ("10:00:11:00", True), ("a:b", True)])
def test_shards_are_several_folders(data, has_shards):
    translation = TranslationTask.__new__(TranslationTask)
    translation.cfg = Namespace(data=data)
    language_modeling = LanguageModelingTask.__new__(LanguageModelingTask)
    language_modeling.args = Namespace(data=data)
    assert translation.has_sharded_data("train") == language_modeling.has_sharded_data("train") == has_shards


def test_fairseq_alone_splits_at_every_colon():
    assert utils.split_paths.__wrapped__("10:00/a.pt") == ["10", "00/a.pt"]
