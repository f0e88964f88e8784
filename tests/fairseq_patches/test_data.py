"""Damaged data are refused with their name, every sentence is used; and the behaviour of fairseq alone."""

import fractions
from argparse import Namespace
from types import SimpleNamespace

import numpy
import pytest
import torch
from binarised_lines import V, write_split
from builders import make_dictionary
from fairseq import utils
from fairseq.data import Dictionary, bucket_pad_length_dataset, data_utils, indexed_dataset
from fairseq.tasks import FairseqTask, translation
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.translation import TranslationTask

from fairseq_plugins.fairseq_patches import data as data_module

LINES = [[5, 6, 2], [7, 2], [8, 9, 10, 2]]
SECOND_LENGTH = 30  # its place in the index


@pytest.fixture
def split(tmp_path):
    return write_split(tmp_path / "data", "train", LINES)


def make_second_longer(split):
    """The second line's length in the index, from 2 to 3."""
    content = bytearray(split.with_suffix(".idx").read_bytes())
    content[SECOND_LENGTH] += 1
    split.with_suffix(".idx").write_bytes(content)


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
    make_second_longer(split)
    opened = indexed_dataset.make_dataset.__wrapped__(str(split), impl="mmap")
    assert torch.equal(opened[1], torch.tensor([7, 2, 8]))
    with pytest.raises(ValueError, match="train.idx is damaged: copy it again, or binarise the text again with"):
        indexed_dataset.make_dataset(str(split), impl="mmap")


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_a_folder_in_place_of_a_file_is_named(suffix, split):
    split.with_suffix(suffix).unlink()
    split.with_suffix(suffix).mkdir()
    with pytest.raises(ValueError, match=f"train{suffix}.*binarise the text again"):
        data_utils.load_indexed_dataset(str(split), make_dictionary(V))


@pytest.mark.parametrize(
    "rows, message",
    [
        (b"a 1\nb 2\na 3\n", "line 3: its word stands there twice: take the file of the training, or run fairseq-"),
        (b"a 1\n\nb 2\n", "line 2: not a word and its count"),
        (b"a 1\nb\xff 2\n", "line 2: not UTF-8"),
    ],
)
def test_a_damaged_row_is_told_by_file_and_number(rows, message, tmp_path):
    path = tmp_path / "dict.txt"
    path.write_bytes(rows)
    with pytest.raises(ValueError) as error:
        Dictionary.load(str(path))
    assert str(error.value).startswith(f"{path}, {message}")


def test_fairseq_alone_names_no_row(tmp_path):
    path = tmp_path / "dict.txt"
    path.write_bytes(b"a 1\nb 2\na 3\n")
    with pytest.raises(RuntimeError, match="^Duplicate word found when loading Dictionary: 'a'") as error:
        Dictionary.add_from_file.__wrapped__(Dictionary(), str(path))
    assert "line" not in str(error.value) and str(path) not in str(error.value)


def test_an_overwritten_word_is_fairseqs(tmp_path):
    (tmp_path / "dict.txt").write_text("a 1\n<unk> 2 #fairseq:overwrite\n")
    assert Dictionary.load(str(tmp_path / "dict.txt")).symbols[-2:] == ["a", "<unk>"]


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir()], ids=["missing", "a folder"])
def test_a_dictionary_that_cannot_be_opened_is_named(make, tmp_path):
    path = tmp_path / "dict.txt"
    make(path)
    with pytest.raises(ValueError, match=f"{path}: .*: take the file of the training"):
        Dictionary.load(str(path))


def load_split(function, folder):
    dictionary = Dictionary()
    return function(
        *(str(folder), "valid", "de", dictionary, "en", dictionary),
        combine=False,
        dataset_impl=None,
        upsample_primary=1,
        left_pad_source=True,
        left_pad_target=False,
        max_source_positions=9,
        max_target_positions=9,
    )


def test_the_names_of_files_tell_the_languages(tmp_path):
    (tmp_path / "train.de-en.de.idx").touch()
    assert data_utils.infer_language_pair(str(tmp_path)) == ["de", "en"]


def test_a_folder_without_pairs_is_named(tmp_path):
    (tmp_path / "train.idx").touch()
    with pytest.raises(ValueError, match=f"{tmp_path} holds no sentence pairs: give the directory that data-prep"):
        data_utils.infer_language_pair(str(tmp_path))
    with pytest.raises(ValueError, match="none: No such file or directory: give the directory that data-prep"):
        data_utils.infer_language_pair(str(tmp_path / "none"))


def test_a_missing_split_is_named(tmp_path):
    with pytest.raises(ValueError, match=f"no split 'valid' of de and en in {tmp_path}: take another split or folder"):
        load_split(translation.load_langpair_dataset, tmp_path)


def test_fairseq_alone_names_no_remedy(tmp_path):
    assert data_utils.infer_language_pair.__wrapped__(str(tmp_path)) == (None, None)
    with pytest.raises(FileNotFoundError, match="Dataset not found: valid"):
        load_split(translation.load_langpair_dataset.__wrapped__, tmp_path)


LIMITS = [dict(max_tokens=60), dict(max_sentences=16), dict(max_tokens=100, max_sentences=9)]


def batch(batch_by_size, indices, lengths, **limits):
    return batch_by_size(
        indices, lambda n: lengths[n], num_tokens_vec=lengths, required_batch_size_multiple=8, **limits
    )


@pytest.mark.parametrize("num_sentences", [1, 7, 8, 10, 1014])
@pytest.mark.parametrize("limits", LIMITS)
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


def keep(filter_indices, *lengths, ignore_invalid_inputs=True):
    """Indices of the sentences of at most five tokens."""

    def filter_indices_by_size(indices, max_positions):
        short = [number for number in indices if lengths[number] <= 5]
        return short, [number for number in indices if number not in short]

    dataset = SimpleNamespace(filter_indices_by_size=filter_indices_by_size)
    return filter_indices(None, range(len(lengths)), dataset, (5, 5), ignore_invalid_inputs=ignore_invalid_inputs)


def test_what_is_short_enough_is_kept():
    assert keep(FairseqTask.filter_indices_by_size, 3, 9, 5) == [0, 2]
    assert keep(FairseqTask.filter_indices_by_size) == []


def test_nothing_left_is_refused_with_the_limits():
    message = r"all 2 sentences are longer than \(5, 5\) tokens, the least of --max-tokens, --max-source-positions"
    with pytest.raises(ValueError, match=message):
        keep(FairseqTask.filter_indices_by_size, 6, 9)


def test_one_that_may_not_be_left_out_is_refused_with_the_limits():
    message = r"^2 of 3 sentences are longer than \(5, 5\) tokens, .*, or give --skip-invalid-size-inputs-valid-test"
    with pytest.raises(ValueError, match=message):
        keep(FairseqTask.filter_indices_by_size, 6, 3, 9, ignore_invalid_inputs=False)
    with pytest.raises(ValueError, match="all 2 sentences are longer"):
        keep(FairseqTask.filter_indices_by_size, 6, 9, ignore_invalid_inputs=False)
    assert keep(FairseqTask.filter_indices_by_size, 5, 3, ignore_invalid_inputs=False) == [0, 1]


def test_fairseq_alone_leaves_nothing():
    assert keep(FairseqTask.filter_indices_by_size.__wrapped__, 6, 9) == []


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


def test_long_is_an_integer(monkeypatch):
    monkeypatch.delattr(numpy, "compat", raising=False)
    data_module.patch_numpy_compat()
    assert numpy.zeros(1, dtype=numpy.compat.long).dtype == numpy.int64


def test_what_numpy_has_is_left_alone(monkeypatch):
    monkeypatch.setattr(numpy, "compat", "its own", raising=False)
    data_module.patch_numpy_compat()
    assert numpy.compat == "its own"


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
