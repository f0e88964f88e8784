"""Models are moved to a device, and its precision is asked of that device."""

import pytest
from builders import build_tiny_lm
from example_layers import OwnSoftmax

from fairseq_plugins.evaluation.score_precision import prepare_to_score
from fairseq_plugins.output_layers import output_precision
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS


@pytest.fixture
def only_meta_has_products(monkeypatch):
    """Products in bfloat16 are native on the device "meta", and not on the CPU, where models are loaded."""
    monkeypatch.setattr(output_precision, "has_native_bfloat16", lambda device: device.type == "meta")


def test_the_device_is_asked_that_computes(only_meta_has_products):
    (model,) = prepare_to_score([build_tiny_lm("doc")], device="meta", precision="bfloat16")
    assert {weight.device.type for weight in model.parameters()} == {"meta"}
    assert model.decoder.output.precision.scores_in == "bfloat16"


def test_what_a_device_lacks_is_refused_and_not_kept(only_meta_has_products):
    model = build_tiny_lm("doc")
    with pytest.raises(ValueError, match="--output-precision bfloat16: this cpu has no matrix products in bfloat16"):
        prepare_to_score([model], device="cpu", precision="bfloat16")
    assert model.decoder.output.precision.scores_in is None


def test_what_no_layer_takes_is_refused(monkeypatch):
    monkeypatch.setitem(OUTPUT_LAYERS, "own", OwnSoftmax)
    monkeypatch.setattr(output_precision, "has_native_bfloat16", lambda device: True)
    models = [build_tiny_lm("doc"), build_tiny_lm("own")]
    with pytest.raises(ValueError, match="--output-precision float8: choose one of"):
        prepare_to_score(models[1:], device="cpu", precision="float8")
    with pytest.raises(ValueError, match="--output-precision bfloat16: a model's output layer computes in no other"):
        prepare_to_score(models, device="cpu", precision="bfloat16")
    assert prepare_to_score(models, device="cpu", precision="float32") == models
