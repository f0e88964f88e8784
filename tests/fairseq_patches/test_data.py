"""Damaged data are refused by file, no sentence is dropped, and names of files may have colons."""

import fractions
import json
import struct
from argparse import Namespace
from types import SimpleNamespace

import numpy
import pytest
import torch
from binarised_data import V, write_split
from builders import make_dictionary
from fairseq import utils
from fairseq.data import Dictionary, LanguagePairDataset, bucket_pad_length_dataset, data_utils, indexed_dataset
from fairseq.tasks import FairseqTask, translation
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.translation import TranslationTask

from fairseq_plugins.fairseq_patches import data as data_module
from fairseq_plugins.files import file_digest
from fairseq_plugins.options import UserError

LINES = [[5, 6, 2], [7, 2], [8, 9, 10, 2]]


@pytest.fixture
def split(tmp_path):
    return write_split(tmp_path / "data", "train", LINES)


def test_whole_text_is_what_it_was(split):
    opened = data_utils.load_indexed_dataset(str(split), make_dictionary(V))
    assert [opened[n].tolist() for n in range(len(opened))] == LINES


@pytest.mark.parametrize("impl", ["mmap", "cached"])
def test_the_last_word_of_a_dictionary_is_one(impl, tmp_path):
    split = write_split(tmp_path / "data", "train", [[0, V - 1]], impl=impl)
    assert len(data_utils.load_indexed_dataset(str(split), make_dictionary(V))) == 1
    with pytest.raises(ValueError, match=f"train.bin has word {V - 1}, but the dictionary has {V - 1} words"):
        data_utils.load_indexed_dataset(str(split), make_dictionary(V - 1))


def test_fairseq_alone_reads_another_text(split):
    index = bytearray(split.with_suffix(".idx").read_bytes())
    index[30] += 1  # the length of the second line, from 2 to 3
    split.with_suffix(".idx").write_bytes(index)
    opened = indexed_dataset.make_dataset.__wrapped__(str(split), impl="mmap")
    assert torch.equal(opened[1], torch.tensor([7, 2, 8]))
    with pytest.raises(ValueError, match="train.idx is damaged: copy it again, or binarise the text again with"):
        indexed_dataset.make_dataset(str(split), impl="mmap")


LENGTHS = 26
"""Where they begin in an index."""


def put(place, content):
    return lambda whole: whole[:place] + content + whole[place + len(content) :]


def cut(length):
    return lambda whole: whole[:length]


INDEX_DAMAGES = {
    "empty": cut(0),
    "another file": lambda whole: bytes(500),
    "cut in its head": cut(12),
    "cut": cut(40),
    "longer": lambda whole: whole + bytes(1),
    "a type": put(17, b"\x77"),
    "a length": put(LENGTHS, b"\x7f"),
    "a length below 0": put(LENGTHS + 3, b"\xff"),
    "a place": lambda whole: whole[:-8] + struct.pack("<q", 3),
}


@pytest.mark.parametrize("change", INDEX_DAMAGES.values(), ids=INDEX_DAMAGES)
def test_a_damaged_index_is_named(change, split):
    index = split.with_suffix(".idx")
    index.write_bytes(change(index.read_bytes()))
    with pytest.raises(ValueError, match="train.idx is damaged: copy it again, or binarise the text again with"):
        indexed_dataset.make_dataset(str(split), impl="mmap")


def test_a_text_that_was_cut_is_named(split):
    text = split.with_suffix(".bin")
    text.write_bytes(text.read_bytes()[:-3])
    with pytest.raises(ValueError, match="train.bin has 15 bytes, and .*train.idx expects 18"):
        indexed_dataset.make_dataset(str(split), impl="mmap")


@pytest.mark.parametrize("content", [b"a 1\nb\n", b"a 1\na 1\n", b"\xff 1\n"])
def test_a_dictionary_that_cannot_be_read_is_damaged(content, tmp_path):
    (tmp_path / "dict.txt").write_bytes(content)
    with pytest.raises(UserError, match=r"dict.txt is damaged \(.+\): copy it again"):
        Dictionary.load(str(tmp_path / "dict.txt"))


def test_fairseq_alone_reads_other_words(tmp_path):
    path = tmp_path / "dict.txt"
    path.write_text("a 1\n<unk> 2 #fairseq:overwrite\n")
    (tmp_path / "digests.json").write_text(json.dumps({"dict.txt": file_digest(path)}))
    assert Dictionary.load(str(path)).symbols[-2:] == ["a", "<unk>"]
    for text in ("a 1\n<unk", "b 1\na 1\n"):  # cut within a line, and other words
        path.write_text(text)
        with pytest.raises(UserError, match="dict.txt is not as it was"):
            Dictionary.load(str(path))
    alone = Dictionary()
    Dictionary.add_from_file.__wrapped__(alone, str(path))
    assert alone.symbols[-2:] == ["b", "a"]


def batch(batch_by_size, indices, lengths, **limits):
    return batch_by_size(
        indices, lambda n: lengths[n], num_tokens_vec=lengths, required_batch_size_multiple=8, **limits
    )


@pytest.mark.parametrize("num_sentences", [1, 8, 1014])
@pytest.mark.parametrize("limits", [dict(max_tokens=60), dict(max_sentences=16), dict(max_tokens=100, max_sentences=9)])
def test_every_sentence_is_in_a_batch(num_sentences, limits):
    lengths = numpy.sort(numpy.random.RandomState(1).randint(1, 12, num_sentences))
    for indices in (numpy.arange(num_sentences), iter(range(num_sentences))):
        batches = batch(data_utils.batch_by_size, indices, lengths, **limits)
        assert [n for batch in batches for n in batch] == list(range(num_sentences))
        for indices_of_batch in batches:
            assert len(indices_of_batch) <= limits.get("max_sentences", num_sentences)
            assert len(indices_of_batch) * lengths[indices_of_batch].max() <= limits.get("max_tokens", 10**6)


def test_fairseq_alone_drops_sentences():
    batches = batch(data_utils.batch_by_size.__wrapped__, numpy.arange(1014), numpy.ones(1014, int), max_sentences=16)
    assert sum(map(len, batches)) == 1008


def test_fairseq_alone_has_fewer_pairs_than_its_parts(tmp_path):
    for part, lines in (("train", LINES), ("train1", LINES[:1])):
        for side in "ab":
            write_split(tmp_path, f"{part}.a-b.{side}", lines)
    words = make_dictionary(V)
    flags = dict(combine=True, dataset_impl="mmap", left_pad_source=True, left_pad_target=False)
    flags |= dict(max_source_positions=9, max_target_positions=9)
    given = (str(tmp_path), "train", "a", words, "b", words)
    for times, num_pairs in ((-1, 4), (2, 7)):
        pairs = translation.load_langpair_dataset(*given, upsample_primary=times, **flags)
        assert len(pairs) == len(pairs.src_sizes) == num_pairs
        assert pairs[num_pairs - 1]["source"].tolist() == LINES[0]
    with pytest.raises(ValueError, match="negative dimensions"):
        translation.load_langpair_dataset.__wrapped__(*given, upsample_primary=-1, **flags)


def test_fairseq_alone_finds_a_long_sentence_in_validation():
    pairs = LanguagePairDataset([torch.ones(4)] * 2, [3, 4], make_dictionary(V), [torch.ones(2)] * 2, [2, 2])
    task = SimpleNamespace(datasets={"train": None, "valid1": pairs})
    for limits, told in [((3, 3), "valid1: 1 sentences .* number 2 with 4 and 2 tokens"), ((1, 1), "2 .* number 1 ")]:
        with pytest.raises(Exception, match="Size of sample"):
            FairseqTask.filter_indices_by_size.__wrapped__(task, numpy.arange(2), pairs, limits)
        with pytest.raises(UserError, match=told):
            FairseqTask.filter_indices_by_size(task, numpy.arange(2), pairs, limits)
    with pytest.raises(UserError, match="^the input: 2 sentences"):  # of fairseq-interactive
        FairseqTask.filter_indices_by_size(SimpleNamespace(datasets={}), numpy.arange(2), pairs, (1, 1))
    assert FairseqTask.filter_indices_by_size(task, numpy.arange(2), pairs, (3, 3), True).tolist() == [0]
    assert FairseqTask.filter_indices_by_size(task, numpy.arange(2), pairs, (4, 4)).tolist() == [0, 1]


def quantiles(lengths, num_buckets):
    """The definition: the longest of each of the equal parts, with positions rounded down."""
    places = [int(fractions.Fraction(n, num_buckets) * (len(lengths) - 1)) for n in range(1, num_buckets + 1)]
    return sorted({sorted(lengths)[place] for place in places})


@pytest.mark.parametrize("num_sentences", [1, 2, 7, 100])
@pytest.mark.parametrize("num_buckets", [1, 2, 3, 8, 200])
def test_lengths_are_quantiles(num_sentences, num_buckets):
    lengths = numpy.random.RandomState(1).randint(1, 30, num_sentences)
    found = bucket_pad_length_dataset.get_buckets(lengths, num_buckets)
    assert found.tolist() == quantiles(lengths.tolist(), num_buckets)
    assert found[-1] == lengths.max() and found.dtype == lengths.dtype


@pytest.mark.skipif(
    numpy.lib.NumpyVersion(numpy.__version__) < "2.4.0", reason="numpy below 2.4 has what fairseq asks for"
)
def test_fairseq_alone_finds_no_lengths():
    with pytest.raises(TypeError, match="interpolation"):
        bucket_pad_length_dataset.get_buckets.__wrapped__(numpy.arange(5), 2)


def test_long_is_an_integer_and_what_numpy_has_is_left_alone(monkeypatch):
    monkeypatch.delattr(numpy, "compat", raising=False)
    data_module.patch_numpy()
    assert numpy.zeros(1, dtype=numpy.compat.long).dtype == numpy.int64
    monkeypatch.setattr(numpy, "compat", "its own")
    data_module.patch_numpy()
    assert numpy.compat == "its own"


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """The working directory, with folders whose names may have the colon that separates paths."""
    monkeypatch.chdir(tmp_path)
    for name in ("10:00", "11:00", "12"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.pt").touch()


@pytest.mark.usefixtures("folders")
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
def test_what_exists_is_one_path_unlike_by_fairseq_alone(text, expected):
    assert utils.split_paths(text) == expected
    assert utils.split_paths.__wrapped__("10:00/a.pt") == ["10", "00/a.pt"]


@pytest.mark.usefixtures("folders")
@pytest.mark.parametrize("data, has_shards", [("12", False), ("10:00", False), ("10:00:11:00", True), ("a:b", True)])
def test_shards_are_several_folders(data, has_shards):
    translation = TranslationTask.__new__(TranslationTask)
    translation.cfg = Namespace(data=data)
    language_modeling = LanguageModelingTask.__new__(LanguageModelingTask)
    language_modeling.args = Namespace(data=data)
    assert translation.has_sharded_data("train") == language_modeling.has_sharded_data("train") == has_shards
