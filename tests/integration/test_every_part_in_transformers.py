"""Every output layer, cell, gate and way to copy works in Transformers."""

import pytest
from every_part import cases, check_parts

MODEL = "transformer_with_output_layer"


@pytest.mark.parametrize("parts", cases(MODEL))
def test_two_updates_a_checkpoint_and_its_use(parts, pair_data, tmp_path, run_here):
    check_parts(MODEL, parts, corpus=pair_data, save_dir=tmp_path, run_here=run_here)
