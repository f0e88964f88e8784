"""Presets of the Transformers: their training."""

import pytest

from fairseq_plugins.models.presets.transformers import ARCHITECTURES

LAYERS = ("full", "bilinear", "dual", "drill", "mos", "doc")


@pytest.mark.parametrize("corpus", ["", "_iwslt", "_wmt14"])
def test_all_output_layers_are_trained_alike_by_smoothed_labels_and_adam(corpus):
    training = ARCHITECTURES[f"transformer_full{corpus}"].training
    assert all(ARCHITECTURES[f"transformer_{layer}{corpus}"].training == training for layer in LAYERS)
    common = {"label-smoothing": 0.1, "optimizer": "adam", "lr-scheduler": "inverse_sqrt", "task": "translation"}
    assert common.items() <= training.items() and {"max-epoch", "max-update"} & set(training)


def test_wmt14_has_two_batches_an_update_and_twice_the_rate_of_vaswani_et_al_at_its_peak():
    training = ARCHITECTURES["transformer_full_wmt14"].training
    expected = {"max-tokens": 4096, "update-freq": 2, "max-update": 350_000, "adam-betas": "(0.9, 0.998)"}
    assert expected.items() <= training.items()
    assert training["lr"] == pytest.approx(2 * (512 * training["warmup-updates"]) ** -0.5, rel=1e-5)
    assert (training["warmup-updates"], training["warmup-init-lr"]) == (8000, 0)
