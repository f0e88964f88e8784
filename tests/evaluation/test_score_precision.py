"""Models are moved to a device, and its precision is asked of that device."""

import pytest
from builders import build_tiny_lm

from fairseq_plugins.evaluation.score_precision import prepare_to_score
from fairseq_plugins.output_layers import output_precision


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
