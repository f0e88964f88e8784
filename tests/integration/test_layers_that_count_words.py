"""A layer that reads word counts, and exists only in the tests, in every model, with and without the training text."""

import re
import shutil

import pytest
import torch
from commands import load
from example_layers import UnigramSoftmax
from fairseq.data import Dictionary, indexed_dataset
from fairseq_cli import eval_lm, generate, train
from translation_commands import TRANSFORMER_SIZES

from fairseq_plugins.output_layers.base import OUTPUT_LAYERS
from fairseq_plugins.output_layers.saved_word_counts import SavedWordCounts

pytestmark = pytest.mark.slow

RECURRENT = ["--embed-dim", "12", "--hidden-sizes", "16 12"]
MODELS = {
    "stateful_lm": ["--arch", "lstm_lm_awd", *RECURRENT],
    "language_modeling": ["--arch", "lstm_lm_awd", *RECURRENT],
    "translation": ["--arch", "lstm_encdec", *RECURRENT],
    "translation by a Transformer": ["--arch", "transformer_full", *TRANSFORMER_SIZES],
}


def count(split, dictionary):
    """Occurrences of each word, line by line."""
    counts = torch.zeros(len(dictionary), dtype=torch.long)
    for line in indexed_dataset.MMapIndexedDataset(str(split)):
        for word in line.tolist():
            counts[word] += 1
    return counts


@pytest.mark.parametrize("case", MODELS)
def test_counts_are_those_of_the_training_text_and_stay_with_the_checkpoint(
    case, data, pair_data, tmp_path, run_here, monkeypatch
):
    monkeypatch.setitem(OUTPUT_LAYERS, UnigramSoftmax.name, UnigramSoftmax)
    task, is_lm = case.split()[0], not case.startswith("translation")
    corpus, split, words = (data, "train", "dict.txt") if is_lm else (pair_data, "train.src-tgt.tgt", "dict.tgt.txt")
    training = ["--task", task, *MODELS[case], "--output-layer", "unigram", "--criterion", "regularized_cross_entropy"]
    training += ["--optimizer", "adam", "--lr", "0.01", "--batch-size", "4", "--num-workers", "0", "--max-update", "2"]
    training += ["--tokens-per-sample", "20"] if is_lm else []
    run_here(train, corpus, *training, "--log-format", "simple", "--save-dir", tmp_path / "model")

    checkpoint = tmp_path / "model/checkpoint_last.pt"
    dictionary = Dictionary.load(str(corpus / words))
    saved = SavedWordCounts(len(dictionary))
    saved.load_state_dict({"digits": load(checkpoint)["model"]["decoder.output.word_counts.digits"]})
    assert torch.equal(saved(), count(corpus / split, dictionary))
    assert saved()[dictionary.eos()] > 0 and not saved()[dictionary.pad()]

    without = shutil.copytree(corpus, tmp_path / "without", ignore=shutil.ignore_patterns("train*"))
    results = []
    for folder in (corpus, without):
        use = [folder, "--path", checkpoint, "--task", task]
        if is_lm:
            log = run_here(eval_lm, *use, "--gen-subset", "valid", "--batch-size", 1)
            results.append(re.findall(r"Perplexity: ([\d.]+)", log))
        else:
            log = run_here(generate, *use, "--beam", 2, "--max-len-b", 5)
            results.append(re.findall(r"^H-\d+.*", log, re.M))
    assert results[0] == results[1] != []
