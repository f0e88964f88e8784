"""The first updates of one model of each family have the losses that were recorded."""

import json

import pytest
from record import NUM_UPDATES, RECORD, losses_of
from short_trainings import FAMILIES

pytestmark = pytest.mark.slow
RECORDED = json.loads(RECORD.read_text(encoding="utf-8"))
RECORDING = "PYTHONPATH=.:tests python tests/golden/record.py, if the change is meant"


def test_every_family_is_recorded():
    assert RECORDED.keys() == FAMILIES.keys(), RECORDING


@pytest.mark.parametrize("name", FAMILIES)
def test_losses_are_those_recorded(name, tmp_path):
    assert losses_of(name, tmp_path) == pytest.approx(RECORDED[name][:NUM_UPDATES], rel=1e-4), RECORDING
