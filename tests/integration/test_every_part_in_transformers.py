"""Every output layer, cell and gate works in Transformers."""

import pytest
from every_part import cases, check_part

MODEL = "transformer_with_output_layer"


@pytest.mark.parametrize("layer, cell, gate", cases(MODEL))
def test_two_updates_a_checkpoint_and_its_use(layer, cell, gate, pair_data, tmp_path, run_here):
    check_part(MODEL, layer, cell, gate, corpus=pair_data, save_dir=tmp_path, run_here=run_here)
