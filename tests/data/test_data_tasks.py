"""Counts of the words that a task trains on."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from binarised_data import V, write_split
from builders import make_dictionary
from fairseq.data import indexed_dataset

from fairseq_plugins.data.tasks import training_counts


def random_lines(num_lines=50):
    """Lines of 1 to 11 words."""
    return [torch.randint(V, (int(n),)).tolist() for n in torch.randint(1, 12, (num_lines,))]


def counts_of(*texts):
    """How often each word occurs in all texts together."""
    counted = Counter(word for lines in texts for line in lines for word in line)
    return [counted[word] for word in range(V)]


def make_task(data, *, languages=(), as_args=False):
    config = SimpleNamespace(data=data, **dict(zip(("source_lang", "target_lang"), languages)))
    task = dict(cfg=None, args=config) if as_args else dict(cfg=config)
    return SimpleNamespace(target_dictionary=make_dictionary(V), **task)


@pytest.mark.parametrize("vocab_size, dtype", [(V, np.uint16), (70_000, np.uint32), (2**32, np.int64)])
def test_every_word_is_counted_whatever_its_type_in_the_file(vocab_size, dtype, tmp_path):
    lines = random_lines()
    split = write_split(tmp_path, "train", lines, vocab_size=vocab_size)
    assert indexed_dataset.MMapIndexedDataset.Index(f"{split}.idx").dtype == dtype
    counts = training_counts(make_task(str(tmp_path)), subset="train")
    assert counts.dtype == torch.int64 and counts.tolist() == counts_of(lines)


@pytest.mark.parametrize("subset", ["train", "half"])
@pytest.mark.parametrize("as_args", [True, False])
def test_a_language_model_has_one_file(as_args, subset, tmp_path):
    lines = random_lines()
    write_split(tmp_path, subset, lines), write_split(tmp_path, "valid", random_lines())
    counts = training_counts(make_task(str(tmp_path), as_args=as_args), subset=subset)
    assert counts.tolist() == counts_of(lines)


@pytest.mark.parametrize("pair", ["de-en", "en-de"])
def test_a_translation_has_the_words_of_its_target(pair, tmp_path):
    source, target = random_lines(), random_lines()
    write_split(tmp_path, f"train.{pair}.de", source), write_split(tmp_path, f"train.{pair}.en", target)
    task = make_task(str(tmp_path), languages=("de", "en"))
    assert training_counts(task, subset="train").tolist() == counts_of(target)


def test_of_both_directions_in_one_folder_the_one_that_fairseq_reads_counts(tmp_path):
    read, first, more = random_lines(), random_lines(), random_lines()
    write_split(tmp_path, "train.de-en.en", read), write_split(tmp_path, "train.en-de.en", first)
    write_split(tmp_path, "train1.en-de.en", more)
    task = make_task(str(tmp_path), languages=("de", "en"))
    assert training_counts(task, subset="train").tolist() == counts_of(read, more)


@pytest.mark.parametrize("side", ["", ".de-en.en"])
def test_the_parts_that_fairseq_trains_on_count_as_well(side, tmp_path):
    texts = [random_lines() for _ in range(4)]
    for number, lines in zip(("", "1", "2", "4"), texts):
        write_split(tmp_path, f"train{number}{side}", lines)
    task = make_task(str(tmp_path), languages=("de", "en") if side else ())
    assert training_counts(task, subset="train").tolist() == counts_of(*texts[:3])


def test_several_directories_are_one_text(tmp_path):
    texts = [random_lines() for _ in range(2)]
    folders = [write_split(tmp_path / f"part{i}", "train", lines).parent for i, lines in enumerate(texts)]
    assert training_counts(make_task(":".join(map(str, folders))), subset="train").tolist() == counts_of(*texts)


def test_without_the_training_text_there_are_no_counts(tmp_path):
    write_split(tmp_path, "valid", random_lines())
    assert training_counts(make_task(str(tmp_path)), subset="train") is None
    write_split(tmp_path, "train.de-en.de", random_lines())
    assert training_counts(make_task(str(tmp_path), languages=("de", "en")), subset="train") is None
