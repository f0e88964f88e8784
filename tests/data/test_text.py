"""Reading binarised splits and dictionaries."""

import gzip
import io
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from binarised_lines import V, counts_of, random_lines, write_split
from builders import make_dictionary
from fairseq.data import Dictionary, indexed_dataset

from fairseq_plugins.data import text as text_module
from fairseq_plugins.data.text import (
    STANDARD_INPUT,
    byte_lines,
    count_words,
    decode_lines,
    dictionary_fingerprint,
    load_dictionary,
    load_token_stream,
    load_training_stream,
    name_of,
    numbered_lines,
    read_lines,
    split_parts,
    training_counts,
)

LINES = ["a b a", "", "c", "b z"]


@pytest.fixture
def dictionary():
    dictionary = Dictionary()
    for word in "abc":
        dictionary.add_symbol(word)
    return dictionary


@pytest.fixture
def corpus_write_split(tmp_path, dictionary):
    """Write lines as ``fairseq-preprocess`` does."""

    def write(split, lines, *, impl="mmap"):
        builder = indexed_dataset.make_builder(f"{tmp_path}/{split}.bin", impl=impl, vocab_size=len(dictionary))
        for line in lines:
            builder.add_item(dictionary.encode_line(line, add_if_not_exist=False, append_eos=True))
        builder.finalize(f"{tmp_path}/{split}.idx")
        return str(tmp_path)

    return write


@pytest.mark.parametrize("impl", ["mmap", "lazy"])
def test_lines_are_joined_in_order_with_an_end_mark_each(impl, corpus_write_split, dictionary):
    tokens = load_token_stream(corpus_write_split("train", LINES, impl=impl), "train", dictionary)
    words = ["a", "b", "a", "</s>", "</s>", "c", "</s>", "b", "<unk>", "</s>"]
    assert tokens.dtype == torch.int64
    assert tokens.tolist() == [dictionary.index(word) for word in words]


def test_parts_of_a_split_are_numbered_from_1_on(corpus_write_split):
    for split in ("train", "train1", "train3"):
        data_dir = corpus_write_split(split, LINES)
    assert split_parts(data_dir, "train") == ["train", "train1"] and split_parts(data_dir, "valid") == ["valid"]


def test_the_training_text_has_all_parts(corpus_write_split, dictionary):
    for split, line in (("train", "a b"), ("train1", "c"), ("train3", "b")):
        data_dir = corpus_write_split(split, [line])
    tokens = load_training_stream(data_dir, dictionary)
    assert dictionary.string(tokens, include_eos=True) == "a b </s> c </s>"


def test_a_missing_split_is_named(corpus_write_split, dictionary):
    data_dir = corpus_write_split("train", LINES)
    with pytest.raises(ValueError, match="no split 'valid'.*valid.bin.*fairseq-preprocess"):
        load_token_stream(data_dir, "valid", dictionary)


@pytest.mark.parametrize("lines, told", [([], "split 'test'.*empty"), (["", "", ""], "split 'test'.*3 blank lines")])
def test_a_split_without_words_is_refused(lines, told, corpus_write_split, dictionary):
    with pytest.raises(ValueError, match=told):
        load_token_stream(corpus_write_split("test", lines), "test", dictionary)


def test_a_dictionary_is_read_with_its_numbers(tmp_path, dictionary):
    dictionary.save(f"{tmp_path}/dict.txt")
    assert load_dictionary(str(tmp_path)).symbols == dictionary.symbols


def test_a_missing_dictionary_is_named(tmp_path):
    with pytest.raises(ValueError, match="dict.txt does not exist.*fairseq-preprocess"):
        load_dictionary(str(tmp_path))


def test_fingerprints_tell_dictionaries_apart_that_number_words_otherwise(dictionary):
    same, swapped, longer = Dictionary(), Dictionary(), Dictionary()
    for word in "abc":
        same.add_symbol(word, n=7)
    for word in "acb":
        swapped.add_symbol(word)
    for word in "abcd":
        longer.add_symbol(word)
    assert dictionary_fingerprint(same) == dictionary_fingerprint(dictionary)
    assert len({dictionary_fingerprint(d) for d in (dictionary, swapped, longer)}) == 3


@pytest.mark.parametrize("name", ["text", "text.gz"])
def test_a_packed_file_is_known_by_its_first_bytes(name, tmp_path):
    (tmp_path / name).write_bytes(gzip.compress("eins\r\n\nzwei\u2028drei".encode()))
    assert list(numbered_lines(tmp_path / name)) == [(1, "eins"), (2, ""), (3, "zwei\u2028drei")]
    (tmp_path / name).write_bytes(b"eins\r\nzwei")
    assert list(byte_lines(tmp_path / name)) == [b"eins\r\n", b"zwei"]
    for content in (b"", b"\x1f"):
        (tmp_path / name).write_bytes(content)
        assert list(byte_lines(tmp_path / name)) == ([content] if content else [])


def test_a_byte_order_mark_is_left_out_at_the_start_only():
    mark = "\ufeff".encode()
    assert list(decode_lines([mark + b"a\n", mark + b"b\n"], name="x")) == [(1, "a"), (2, "\ufeffb")]


def test_what_cannot_be_read_is_refused_before_the_first_line(tmp_path):
    with pytest.raises(ValueError, match="none does not exist: give a text file$"):
        numbered_lines(tmp_path / "none")
    with pytest.raises(ValueError, match="is a folder: give a list$"):
        byte_lines(tmp_path, wanted="a list")


def test_damage_is_told_after_the_lines_before_it(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(gzip.compress(b"eins\nzwei\n") + b"\x1f\x8bmore")
    lines = numbered_lines(path)
    with pytest.raises(ValueError, match=r"text is truncated or damaged after line \d \(.*\): copy it again$"):
        list(lines)
    path.write_bytes(b"eins\n\xff\n")
    lines = numbered_lines(path)
    assert next(lines) == (1, "eins")
    with pytest.raises(ValueError, match="text, line 2: not UTF-8"):
        next(lines)


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_lines_that_end_in_carriage_returns_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"a: its lines end in carriage returns, .* by tr '\\r' '\\n'"):
        read_lines(write(tmp_path / "a", "x\ry\r"))
    assert read_lines(write(tmp_path / "b", "x\r")) == ["x"]


def test_lines_end_at_newlines_only(tmp_path):
    assert read_lines(write(tmp_path / "a", "x\u2028y\r\nz\x0b\n")) == ["x\u2028y", "z\x0b"]
    assert read_lines(write(tmp_path / "b", "x\n\ny")) == ["x", "", "y"]


@pytest.mark.parametrize("content, told", [(b"", "is empty"), (b"ok\n\xff\n", "line 2: not UTF-8")])
def test_files_that_cannot_be_read_are_refused(content, told, tmp_path):
    with pytest.raises(ValueError, match=told):
        read_lines(write(tmp_path / "reference", content))
    with pytest.raises(ValueError, match="does not exist"):
        read_lines(tmp_path / "missing")


def test_all_lines_of_packed_files_and_of_the_standard_input(tmp_path, monkeypatch):
    assert read_lines(write(tmp_path / "a.gz", gzip.compress(b"one\n\ntwo\n"))) == ["one", "", "two"]
    with pytest.raises(ValueError, match="is a folder: give a text file"):
        read_lines(tmp_path)
    with pytest.raises(ValueError, match="/dev/zero is a device: give a text file"):
        read_lines(Path("/dev/zero"))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbfone\r\ntwo")))
    assert read_lines(STANDARD_INPUT) == ["one", "two"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(ValueError, match="^standard input is empty$"):
        read_lines(STANDARD_INPUT)
    assert name_of(tmp_path / "a", STANDARD_INPUT) == f"{tmp_path}/a and standard input"


def test_lines_are_composed_unless_their_form_is_kept(tmp_path):
    path = write(tmp_path / "text", "scho\u0308n\n")
    assert read_lines(path) == ["sch\u00f6n"] and read_lines(path, unicode="kept") == ["scho\u0308n"]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("text", ["the dog\n", "\u0645\u06cc\n\u0645\u06cc\n"])
def test_text_in_utf_16_without_a_mark_is_refused(encoding, text, tmp_path):
    with pytest.raises(ValueError, match="text, line [12]: not UTF-8: .*convert it to UTF-8"):
        read_lines(write(tmp_path / "text", text.encode(encoding)))


@pytest.mark.parametrize("vocab_size, dtype", [(V, np.uint16), (70_000, np.uint32), (2**32, np.int64)])
def test_every_word_is_counted_whatever_its_type_in_the_file(vocab_size, dtype, tmp_path):
    lines = random_lines()
    split = write_split(tmp_path, "train", lines, vocab_size=vocab_size)
    assert indexed_dataset.MMapIndexedDataset.Index(f"{split}.idx").dtype == dtype
    counts = count_words(split, V)
    assert counts.dtype == torch.int64 and counts.tolist() == counts_of(lines)


@pytest.mark.parametrize("tokens_at_once", [1, 7])
def test_pieces_are_added_up(tokens_at_once, tmp_path, monkeypatch):
    monkeypatch.setattr(text_module, "TOKENS_AT_ONCE", tokens_at_once)
    lines = random_lines()
    assert count_words(write_split(tmp_path, "train", lines), V).tolist() == counts_of(lines)


def test_a_text_without_words_has_none(tmp_path):
    assert count_words(write_split(tmp_path, "train", []), V).tolist() == [0] * V


def test_a_word_that_the_dictionary_does_not_have_is_refused(tmp_path):
    with pytest.raises(ValueError, match="train.bin has word 17, but the dictionary has 17 words: binarise the text"):
        count_words(write_split(tmp_path, "train", [[3, 17], [4]]), 17)


def test_another_format_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(
        ValueError, match="train.bin: its words cannot be counted; .*fairseq-preprocess --dataset-impl mmap"
    ):
        count_words(write_split(tmp_path, "train", [[3, 4]], impl="cached"), V)


# those of a task


def make_task(data, *, languages=(), as_args=False, **flags):
    config = SimpleNamespace(data=data, **dict(zip(("source_lang", "target_lang"), languages)), **flags)
    task = dict(cfg=None, args=config) if as_args else dict(cfg=config)
    return SimpleNamespace(target_dictionary=make_dictionary(V), **task)


@pytest.mark.parametrize("flags", [{}, {"train_subset": "train"}, {"train_subset": "half"}])
@pytest.mark.parametrize("as_args", [True, False])
def test_a_language_model_has_one_file(as_args, flags, tmp_path):
    lines = random_lines()
    write_split(tmp_path, flags.get("train_subset", "train"), lines), write_split(tmp_path, "valid", random_lines())
    counts = training_counts(make_task(str(tmp_path), as_args=as_args, **flags))
    assert counts.tolist() == counts_of(lines)


@pytest.mark.parametrize("pair", ["de-en", "en-de"])
def test_a_translation_has_the_words_of_its_target(pair, tmp_path):
    source, target = random_lines(), random_lines()
    write_split(tmp_path, f"train.{pair}.de", source), write_split(tmp_path, f"train.{pair}.en", target)
    task = make_task(str(tmp_path), languages=("de", "en"), train_subset="train")
    assert training_counts(task).tolist() == counts_of(target)


def test_of_both_directions_in_one_folder_the_one_that_fairseq_reads_counts(tmp_path):
    read, first, more = random_lines(), random_lines(), random_lines()
    write_split(tmp_path, "train.de-en.en", read), write_split(tmp_path, "train.en-de.en", first)
    write_split(tmp_path, "train1.en-de.en", more)
    task = make_task(str(tmp_path), languages=("de", "en"), train_subset="train")
    assert training_counts(task).tolist() == counts_of(read, more)


@pytest.mark.parametrize("side", ["", ".de-en.en"])
def test_the_parts_that_fairseq_trains_on_count_as_well(side, tmp_path):
    texts = [random_lines() for _ in range(4)]
    for number, lines in zip(("", "1", "2", "4"), texts):
        write_split(tmp_path, f"train{number}{side}", lines)
    task = make_task(str(tmp_path), languages=("de", "en") if side else ())
    assert training_counts(task).tolist() == counts_of(*texts[:3])


def test_several_directories_are_one_text(tmp_path):
    texts = [random_lines() for _ in range(2)]
    folders = [write_split(tmp_path / f"part{i}", "train", lines).parent for i, lines in enumerate(texts)]
    assert training_counts(make_task(":".join(map(str, folders)))).tolist() == counts_of(*texts)


def test_without_the_training_text_there_are_no_counts(tmp_path):
    write_split(tmp_path, "valid", random_lines())
    assert training_counts(make_task(str(tmp_path))) is None
    write_split(tmp_path, "train.de-en.de", random_lines())
    assert training_counts(make_task(str(tmp_path), languages=("de", "en"))) is None


def test_a_training_text_that_does_not_fit_is_refused(tmp_path):
    write_split(tmp_path, "train", [[V + 3, 4]], vocab_size=2 * V)
    with pytest.raises(ValueError, match=f"train.bin has word {V + 3}"):
        training_counts(make_task(str(tmp_path)))
