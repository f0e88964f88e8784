"""Trained models in Python: raw text in, raw text out."""

import math
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from binarised_data import copy_data
from paths import SMALL_MODELS
from sacremoses import MosesTokenizer

import fairseq_plugins
from fairseq_plugins.data.text import load_token_stream
from fairseq_plugins.evaluation.scoring import evaluate_perplexity

LM, OTHER_LM, PAIRS = (SMALL_MODELS / f"{name}.pt" for name in ("lstm_lm_doc", "mmlstm_lm_mos", "lstm_encdec_doc"))


@pytest.fixture
def lm_data(tmp_path):
    record = {"tokenizer": "moses", "language": "en", "case": "lower tokens"}
    return copy_data(SMALL_MODELS / "data/lm", tmp_path / "data bin", **record)


@pytest.fixture
def lm(lm_data):
    return fairseq_plugins.load(LM, lm_data)


def test_lines_are_scored_as_raw_text(lm):
    first, second = lm.score(["The dog eats a bone.", "It's"])
    assert first.tokens == ["the", "dog", "eats", "a", "bone", ".", "</s>"] and len(first.log_probs) == 7
    assert second.tokens == [*MosesTokenizer(lang="en").tokenize("it's"), "</s>"] and second.unknown[0]
    assert first.total == pytest.approx(sum(first.log_probs)) and first.total < 0


def test_perplexity_is_that_of_the_stream(lm, lm_data):
    stream = load_token_stream(lm_data, "test", lm.dictionary)
    lines = [lm.dictionary.string(line[line != 2]) for line in stream.tensor_split((stream == 2).nonzero()[:, 0])]
    tokenised = fairseq_plugins.load(LM, lm_data, text="tokenised", max_tokens=99)
    assert tokenised.max_tokens == 99
    # the lines of the split, of which the last part is what follows the last end mark
    expected = evaluate_perplexity(tokenised.models, torch.cat([torch.tensor([2]), stream])).perplexity
    text = "\n".join(lines[:-1]) + "\n"
    assert tokenised.perplexity(text) == pytest.approx(expected, rel=1e-6)
    assert tokenised.perplexity(lines[:-1]) == pytest.approx(expected, rel=1e-6)
    log_probs = [log_prob for line in tokenised.score(lines[:-1]) for log_prob in line.log_probs]
    alone = math.exp(-sum(log_probs) / len(log_probs))
    assert tokenised.perplexity(text, context="line") == pytest.approx(alone) != pytest.approx(expected)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_told_first(tmp_path):
    with pytest.raises(ValueError, match="device cuda: there is none here; give 'cpu', or 'cuda' where torch sees a"):
        fairseq_plugins.load(tmp_path / "nowhere.pt", tmp_path, device="cuda")


def test_samples_are_raw_text(lm):
    text = lm.sample("The dog", seed=2, max_length=8, unknown="excluded")
    assert text.startswith("the dog") and text == lm.sample("The dog", seed=2, max_length=8, unknown="excluded")
    several = lm.continuations("The dog", num=3, temperature=0.5, top_k=5, top_p=0.9, max_length=8)
    (best, second) = lm.continuations("The dog", num=2, beam=4, max_length=8)
    assert len({one.text for one in several}) > 1 and best.total / len(best.tokens) >= second.total / len(second.tokens)
    (after,) = lm.continuations("The", after=["A cat finds a seed today ."], beam=1, max_length=4)
    assert after.text.startswith("the ")


def test_several_checkpoints_are_one_model(lm_data, lm):
    both, other = (fairseq_plugins.load(path, lm_data) for path in ([LM, OTHER_LM], OTHER_LM))
    (line,), (first,), (second,) = (model.score(["the dog"]) for model in (both, lm, other))
    mean = [math.log((math.exp(a) + math.exp(b)) / 2) for a, b in zip(first.log_probs, second.log_probs)]
    assert line.log_probs == pytest.approx(mean, rel=1e-5)


def test_a_folder_stands_for_its_best_checkpoint_and_else_its_last(lm_data, lm, tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    with pytest.raises(ValueError, match="checkpoints holds no checkpoint_best.pt: give a checkpoint, such as SAVE_"):
        fairseq_plugins.load(folder, lm_data)
    shutil.copy(OTHER_LM, folder / "checkpoint_last.pt")
    last = fairseq_plugins.load(str(folder), str(lm_data)).score(["the dog"])
    shutil.copy(LM, folder / "checkpoint_best.pt")
    assert fairseq_plugins.load(folder, lm_data).score(["the dog"]) == lm.score(["the dog"]) != last


@pytest.mark.parametrize("others", ["", ":gone"])
def test_the_data_are_the_first_folder_of_the_training_unless_others_are_given(others, lm_data, lm, tmp_path):
    state = torch.load(LM, weights_only=True)
    state["cfg"]["task"]["data"] = f"{lm_data}{others}"
    torch.save(state, tmp_path / "moved.pt")
    assert fairseq_plugins.load(tmp_path / "moved.pt").score(["the dog"]) == lm.score(["the dog"])
    lm_data.rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="data bin, where .*moved.pt was trained, is no folder: give the one that"):
        fairseq_plugins.load(tmp_path / "moved.pt")


def test_loading_neither_uses_nor_changes_torchs_default_type_and_generator(lm_data):
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    torch.set_default_dtype(torch.float16)
    try:
        (model,) = fairseq_plugins.load(LM, lm_data).models
        assert torch.get_default_dtype() == torch.float16
    finally:
        torch.set_default_dtype(torch.float32)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert torch.equal(torch.rand(2), expected)


@pytest.mark.parametrize("name", ["lstm_encdec_doc", "transformer_drill"])
def test_translations_with_the_next_best_and_attention(name, pair_data):
    translator = fairseq_plugins.load(SMALL_MODELS / f"{name}.pt", pair_data)
    lines = ["i c k", "", "a h l e", "g"]
    translated = translator.translate(lines, beam=4, nbest=3, batch_size=2)
    assert [bool(one.text) for one in translated] == [True, False, True, True]
    for line, one in zip(lines, translated):
        if not line:
            continue
        assert len(one.others) == 2 and one.source == line.split()
        assert len({each.text for each in (one, *one.others)}) == 3
        (best,) = translator.translate([line], beam=4)
        assert (best.text, best.others) == (one.text, []) and best.score == pytest.approx(one.score, rel=1e-5)
        attention = translator.attention(line, beam=4)
        assert attention.source == [*line.split(), "</s>"] and attention.target[-1] == "</s>"
        torch.testing.assert_close(attention.weights.sum(1), torch.ones(len(attention.target)))
    with pytest.raises(ValueError, match="a blank line has no attention"):
        translator.attention(" ")


def test_threads_translate_alike(pair_data):
    translator = fairseq_plugins.load(PAIRS, pair_data)
    asked = [(lines, beam) for beam in (1, 3, 5) for lines in (["i c k"], ["a h l e", "g"])] * 2
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda one: translator.translate(one[0], beam=one[1]), asked))
    assert together == [translator.translate(lines, beam=beam) for lines, beam in asked]


def test_what_is_missing_is_told(lm_data, pair_data, lm):
    (lm_data / "text.json").unlink()
    (pair_data / "bpe.codes").unlink()
    load = fairseq_plugins.load
    for call, message in (
        (lambda: load(LM, lm_data), "text.json is missing"),
        (lambda: load(PAIRS, pair_data), "has no bpe.codes"),
        (lambda: load("nowhere.pt", lm_data), "nowhere.pt does not exist"),
        (lambda: load([], lm_data), "give a checkpoint"),
        (lambda: load(PAIRS, pair_data, text="tokenised"), "text tokenised: a translator reads raw text"),
        (lambda: load("nowhere", lm_data, text="tokenized"), "text tokenized: choose one of raw, tokenised"),
        (lambda: load(LM, lm_data, max_tokens=0), "max_tokens 0: give at least 1"),
        (lambda: load(LM, lm_data, device="gpu"), "device gpu: there is none here; give 'cpu', or 'cuda'"),
        (lambda: load(LM, lm_data, precision="float8"), "float8"),
        (lambda: load(PAIRS, pair_data, precision="float8"), "float8"),
        (lambda: lm.continuations("the", beam=2, top_k=3), "--seed are for sampling: leave them or --beam out"),
        (lambda: lm.score("the dog"), "is one text: give a list of lines"),
        (lambda: lm.score(Path("text.en")), "text.en'.* is of type PosixPath: give a list of lines"),
        (lambda: lm.perplexity(np.array([])), "a text without a line has no perplexity"),
        (lambda: lm.sample(["I am"]), "is no text but of type list"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    for wrong, message in (
        ([b"I am"], "b'I am' is no text but of type bytes: give a line as str"),
        ([5], "5 is no text but of type int"),
        (["I am.\nYou are."], "'I am.' goes on in another line: split the text into lines"),
    ):
        for call in (lm.score, lm.perplexity, lambda lines: lm.sample(lines[0]), lambda lines: lm.sample(after=lines)):
            with pytest.raises(ValueError, match=message):
                call(wrong)


def test_lines_may_have_newlines_or_be_an_array(lm):
    lines = ["the dog", "it"]
    for given in (["the dog\n", "it\r\n"], np.array(lines)):
        assert lm.score(given) == lm.score(lines)
        assert lm.perplexity(given) == lm.perplexity("the dog\nit\n")
        assert lm.continuations("the", after=given) == lm.continuations("the", after=lines)


@pytest.mark.slow
def test_importing_the_package_imports_nothing_slow_and_leaves_the_root_logger_alone():
    program = """
import logging, sys
import fairseq_plugins
root = logging.getLogger()
slow = [name for name in sys.modules if name in ('nltk', 'sacremoses') or 'fairseq_plugins.evaluation' in name]
print(logging.getLevelName(root.level), root.handlers, slow)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "WARNING [] []\n"
