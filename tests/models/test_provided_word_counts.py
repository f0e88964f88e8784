"""Word counts of a task's training text for the output layers that read them."""

from types import SimpleNamespace

import pytest
from binarised_lines import V, counts_of, random_lines, write_split
from builders import make_dictionary

from fairseq_plugins.models.word_counts import provide_word_counts
from fairseq_plugins.output_layers.saved_word_counts import SavedWordCounts


def provided(task):
    """What an output layer reads, (V,)."""
    layer = SimpleNamespace(word_counts=SavedWordCounts(V))
    provide_word_counts(layer, task)
    return layer.word_counts()


def make_task(data, *, languages=(), as_args=False, **flags):
    config = SimpleNamespace(data=data, **dict(zip(("source_lang", "target_lang"), languages)), **flags)
    task = dict(cfg=None, args=config) if as_args else dict(cfg=config)
    return SimpleNamespace(target_dictionary=make_dictionary(V), **task)


@pytest.mark.parametrize("flags", [{}, {"train_subset": "train"}, {"train_subset": "half"}])
@pytest.mark.parametrize("as_args", [True, False])
def test_a_language_model_has_one_file(as_args, flags, tmp_path):
    lines = random_lines()
    write_split(tmp_path, flags.get("train_subset", "train"), lines), write_split(tmp_path, "valid", random_lines())
    counts = provided(make_task(str(tmp_path), as_args=as_args, **flags))
    assert counts.tolist() == counts_of(lines)


@pytest.mark.parametrize("pair", ["de-en", "en-de"])
def test_a_translation_has_the_words_of_its_target(pair, tmp_path):
    source, target = random_lines(), random_lines()
    write_split(tmp_path, f"train.{pair}.de", source), write_split(tmp_path, f"train.{pair}.en", target)
    task = make_task(str(tmp_path), languages=("de", "en"), train_subset="train")
    assert provided(task).tolist() == counts_of(target)


def test_of_both_directions_in_one_folder_the_one_that_the_host_reads_counts(tmp_path):
    read, first, more = random_lines(), random_lines(), random_lines()
    write_split(tmp_path, "train.de-en.en", read), write_split(tmp_path, "train.en-de.en", first)
    write_split(tmp_path, "train1.en-de.en", more)
    task = make_task(str(tmp_path), languages=("de", "en"), train_subset="train")
    assert provided(task).tolist() == counts_of(read, more)


@pytest.mark.parametrize("side", ["", ".de-en.en"])
def test_the_parts_that_the_host_trains_on_count_as_well(side, tmp_path):
    texts = [random_lines() for _ in range(4)]
    for number, lines in zip(("", "1", "2", "4"), texts):
        write_split(tmp_path, f"train{number}{side}", lines)
    task = make_task(str(tmp_path), languages=("de", "en") if side else ())
    assert provided(task).tolist() == counts_of(*texts[:3])


def test_several_directories_are_one_text(tmp_path):
    texts = [random_lines() for _ in range(2)]
    folders = [write_split(tmp_path / f"part{i}", "train", lines).parent for i, lines in enumerate(texts)]
    assert provided(make_task(":".join(map(str, folders)))).tolist() == counts_of(*texts)


def test_without_the_training_text_there_are_no_counts(tmp_path):
    write_split(tmp_path, "valid", random_lines())
    assert not provided(make_task(str(tmp_path))).any()
    write_split(tmp_path, "train.de-en.de", random_lines())
    assert not provided(make_task(str(tmp_path), languages=("de", "en"))).any()


def test_a_text_that_does_not_fit_is_refused_where_the_counts_are_read_unless_a_checkpoint_has_them(tmp_path):
    write_split(tmp_path, "train", [[V + 3, 4]], vocab_size=2 * V)
    counts, saved = SavedWordCounts(V), SavedWordCounts(V)
    provide_word_counts(SimpleNamespace(word_counts=counts), make_task(str(tmp_path)))
    with pytest.raises(ValueError, match="train.bin has word 43"):
        counts()
    counts.load_state_dict(saved.state_dict())
    assert not counts().any()


def test_a_layer_without_counts_reads_no_text(tmp_path):
    provide_word_counts(SimpleNamespace(word_counts=None), make_task(str(tmp_path / "nowhere")))
