"""Every part has its equations, with which the package is compared."""

import plain_formulas
import pytest

from fairseq_plugins.modules.cell import RECURRENT_CELLS
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS


@pytest.mark.parametrize(
    "registry, formulas", [(RECURRENT_CELLS, plain_formulas.CELLS), (OUTPUT_LAYERS, plain_formulas.OUTPUT_LAYERS)]
)
def test_every_part_has_a_formula(registry, formulas):
    missing = sorted(registry.keys() - formulas.keys())
    assert not missing, f"write the equations of {registry.flag} {', '.join(missing)} into tests/plain_formulas.py"
    assert not formulas.keys() - registry.keys()
