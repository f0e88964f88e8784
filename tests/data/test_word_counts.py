"""Counting the words of a binarised training text."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from dictionaries import make_dictionary
from fairseq.data import indexed_dataset

from fairseq_plugins.data import word_counts
from fairseq_plugins.data.word_counts import count_words, training_word_counts

V = 40


@pytest.fixture
def write(tmp_path):
    """``write(name, lines, vocab_size)``: a split as ``fairseq-preprocess`` writes it; returns its path."""

    def write(name, lines, *, vocab_size=V, impl="mmap", folder=tmp_path):
        folder.mkdir(exist_ok=True)
        builder = indexed_dataset.make_builder(f"{folder}/{name}.bin", impl=impl, vocab_size=vocab_size)
        for line in lines:
            builder.add_item(torch.tensor(line))
        builder.finalize(f"{folder}/{name}.idx")
        return folder / name

    return write


def random_lines(num_lines=50, vocab_size=V):
    return [torch.randint(vocab_size, (int(n),)).tolist() for n in torch.randint(1, 12, (num_lines,))]


def by_hand(*texts):
    counted = Counter(word for lines in texts for line in lines for word in line)
    return [counted[word] for word in range(V)]


@pytest.mark.parametrize("vocab_size, dtype", [(V, np.uint16), (70_000, np.uint32), (2**32, np.int64)])
def test_every_word_is_counted_whatever_its_type_in_the_file(vocab_size, dtype, write):
    lines = random_lines()
    split = write("train", lines, vocab_size=vocab_size)
    assert indexed_dataset.MMapIndexedDataset.Index(f"{split}.idx").dtype == dtype
    counts = count_words(split, V)
    assert counts.dtype == torch.int64 and counts.tolist() == by_hand(lines)


@pytest.mark.parametrize("tokens_at_once", [1, 7])
def test_pieces_are_added_up(tokens_at_once, write, monkeypatch):
    monkeypatch.setattr(word_counts, "TOKENS_AT_ONCE", tokens_at_once)
    lines = random_lines()
    assert count_words(write("train", lines), V).tolist() == by_hand(lines)


def test_a_text_without_words_has_none(write):
    assert count_words(write("train", []), V).tolist() == [0] * V


def test_a_word_that_the_dictionary_does_not_have_is_refused(write):
    with pytest.raises(ValueError, match="train.bin has word 17, but the dictionary has 17 words: binarise the text"):
        count_words(write("train", [[3, 17], [4]]), 17)


def test_another_format_is_refused_with_the_remedy(write):
    with pytest.raises(
        ValueError, match="train.bin: its words cannot be counted; .*fairseq-preprocess --dataset-impl mmap"
    ):
        count_words(write("train", [[3, 4]], impl="cached"), V)


def make_task(data, *, languages=(), as_args=False, **flags):
    config = SimpleNamespace(data=data, **dict(zip(("source_lang", "target_lang"), languages)), **flags)
    task = dict(cfg=None, args=config) if as_args else dict(cfg=config)
    return SimpleNamespace(target_dictionary=make_dictionary(V), **task)


@pytest.mark.parametrize("flags", [{}, {"train_subset": "train"}, {"train_subset": "half"}])
@pytest.mark.parametrize("as_args", [True, False])
def test_a_language_model_has_one_file(as_args, flags, write, tmp_path):
    lines = random_lines()
    write(flags.get("train_subset", "train"), lines), write("valid", random_lines())
    counts = training_word_counts(make_task(str(tmp_path), as_args=as_args, **flags))
    assert counts.tolist() == by_hand(lines)


@pytest.mark.parametrize("pair", ["de-en", "en-de"])
def test_a_translation_has_the_words_of_its_target(pair, write, tmp_path):
    source, target = random_lines(), random_lines()
    write(f"train.{pair}.de", source), write(f"train.{pair}.en", target)
    task = make_task(str(tmp_path), languages=("de", "en"), train_subset="train")
    assert training_word_counts(task).tolist() == by_hand(target)


def test_several_directories_are_one_text(write, tmp_path):
    texts = [random_lines() for _ in range(2)]
    folders = [write("train", lines, folder=tmp_path / f"part{i}").parent for i, lines in enumerate(texts)]
    assert training_word_counts(make_task(":".join(map(str, folders)))).tolist() == by_hand(*texts)


def test_without_the_training_text_there_are_no_counts(write, tmp_path):
    write("valid", random_lines())
    assert training_word_counts(make_task(str(tmp_path))) is None
    write("train.de-en.de", random_lines())
    assert training_word_counts(make_task(str(tmp_path), languages=("de", "en"))) is None
