"""Every output layer, cell and gate works in language models, and every model is tested so."""

import pytest
from every_part import MODELS, cases, check_parts
from fairseq.models import MODEL_REGISTRY

MODEL = "recurrent_lm"


def test_all_models_are_tested():
    ours = {name for name, model in MODEL_REGISTRY.items() if model.__module__.startswith("fairseq_plugins.")}
    assert ours == {*MODELS, "gated_lm"}  # the last, which needs trained models, in test_gated_language_models.py


@pytest.mark.parametrize("parts", cases(MODEL))
def test_two_updates_a_checkpoint_and_its_use(parts, data, tmp_path, run_here):
    check_parts(MODEL, parts, corpus=data, save_dir=tmp_path, run_here=run_here)
