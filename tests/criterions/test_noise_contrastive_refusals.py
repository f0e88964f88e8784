"""What noise-contrastive estimation does not go with is told in one line, before the first update."""

import copy
from types import SimpleNamespace

import pytest
import torch
from builders import build_tiny_gated_lm, build_tiny_lm, tiny_base_flags
from fairseq.models import FairseqLanguageModel
from fairseq.models.lstm import LSTMDecoder
from noise_cases import MODELS, SIZES, V, make_counted_task, make_sample
from torch import distributed

from fairseq_plugins.criterions import noise_contrastive
from fairseq_plugins.criterions.noise_contrastive import NoiseContrastive


@pytest.fixture
def task(tmp_path):
    return make_counted_task(tmp_path)


@pytest.fixture
def make_criterion(task):
    return lambda **flags: NoiseContrastive(task, **{"noise_samples": 3, **flags})


@pytest.mark.parametrize("flags, told", [({"noise_samples": 0}, "--noise-samples 0: give at least 1")])
def test_flags_that_are_refused(flags, told, make_criterion):
    with pytest.raises(ValueError, match=told):
        make_criterion(**flags)


@pytest.mark.parametrize("flags", [{"fp16": True}, {"bf16": True}])
def test_16_bits_have_dense_gradients(flags, make_criterion):
    with pytest.raises(ValueError, match="give --sparse-gradients off, or --amp"):
        make_criterion(**flags)
    make_criterion(sparse_gradients="off", **flags)


@pytest.mark.parametrize("sharing, refused", [("none", True), ("batch", False)])
def test_more_noise_than_memory_holds_is_refused(sharing, refused, make_criterion, monkeypatch):
    model = MODELS["full"]()
    sample = make_sample(model)
    monkeypatch.setattr(noise_contrastive, "MOST_WORDS", 5 * sample["target"].numel() - 1)
    criterion = make_criterion(noise_samples=5, noise_sharing=sharing)
    if refused:
        told = f"--noise-samples 5: an update would draw {5 * sample['target'].numel()} words, .*give fewer, or --noise"
        with pytest.raises(ValueError, match=told):
            criterion(model, sample)
    else:
        criterion(model, sample)


@pytest.mark.parametrize("name", ["mos", "doc"])
def test_mixtures_are_refused(name, make_criterion):
    model = build_tiny_lm(name, **SIZES)
    with pytest.raises(ValueError, match=f"needs logits of single words, which --output-layer {name} has not: take b"):
        make_criterion()(model, make_sample(model))


@pytest.mark.parametrize(
    "model, told",
    [
        (lambda: build_tiny_lm("full", output_gate="iog", gate_dim=5, **SIZES), "leave --output-gate iog out"),
        (lambda: build_tiny_gated_lm(tiny_base_flags("full"), **SIZES), "train --arch gated_lm with --criterion reg"),
        (lambda: build_tiny_lm("full", adversarial_epsilon=0.1, **SIZES), "has no --adversarial-epsilon 0.1: leave it"),
    ],
)
def test_what_changes_logits_is_refused(model, told, make_criterion):
    model = model()
    with pytest.raises(ValueError, match=told):
        make_criterion()(model, make_sample(model))


def test_an_architecture_of_the_host_is_refused(make_criterion, make_dictionary):
    decoder = LSTMDecoder(make_dictionary(V), embed_dim=8, hidden_size=8, out_embed_dim=8, attention=False)
    model = FairseqLanguageModel(decoder)
    with pytest.raises(ValueError, match="--criterion noise_contrastive needs an --arch of fairseq_plugins"):
        make_criterion()(model, make_sample(model))


def test_without_word_counts_it_is_refused(task, tmp_path):
    model = MODELS["full"]()
    elsewhere = copy.copy(task)
    elsewhere.cfg = SimpleNamespace(data=str(tmp_path / "nowhere"))
    criterion = NoiseContrastive(elsewhere)
    with pytest.raises(ValueError, match="word counts of the training text, and there is none beside this data"):
        criterion(model, make_sample(model))
    with torch.no_grad():
        assert criterion.eval()(model.eval(), make_sample(model))[0] > 0


def test_several_processes_have_dense_gradients(make_criterion, monkeypatch):
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    with pytest.raises(ValueError, match="several processes add up dense gradients alone: give --sparse-gradients off"):
        make_criterion()
    make_criterion(sparse_gradients="off")
