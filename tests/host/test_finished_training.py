"""A training that ended by itself is started again."""

from types import SimpleNamespace

import pytest

from fairseq_plugins.host.finished_training import _train_no_more
from fairseq_plugins.host.resumed_validation import PATIENCE


@pytest.fixture
def start_again():
    """``start_again(**flags)``: epochs that are trained after three of ten, where two were no better."""

    def start(*, num_updates=300, saved=True, **flags):
        checkpoint = dict(save_dir="runs", patience=-1, reset_optimizer=False, reset_meters=False)
        checkpoint.update({name: value for name, value in flags.items() if name in checkpoint})
        optimization = SimpleNamespace(max_epoch=10, max_update=flags.get("max_update", 0))
        trainer = SimpleNamespace(cfg=SimpleNamespace(optimization=optimization), get_num_updates=lambda: num_updates)
        state = {PATIENCE: {"best": 1.0, "num_runs": 2}} if saved else None
        iterator = SimpleNamespace(next_epoch_idx=4)
        found = _train_no_more(lambda *args: (state, iterator), SimpleNamespace(**checkpoint), trainer)
        assert found == (state, iterator)
        max_epoch = optimization.max_epoch or float("inf")  # as the host reads it
        return max(0, max_epoch - iterator.next_epoch_idx + 1)

    return start


@pytest.mark.parametrize("flags", [{"max_update": 300}, {"max_update": 200}, {"patience": 2}, {"patience": 1}])
def test_a_finished_training_stays_as_it_is(flags, start_again, caplog):
    with caplog.at_level("INFO"):
        assert start_again(**flags) == 0
    assert "the training in runs is finished" in caplog.text and f"is {[*flags.values()][0]};" in caplog.text


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"max_update": 301},
        {"patience": 3},
        {"patience": 1, "reset_meters": True},
        {"patience": 1, "reset_optimizer": True},
        {"patience": 1, "num_updates": 0},
        {"patience": 1, "max_update": 1, "num_updates": 0, "saved": False},
    ],
    ids=str,
)
def test_what_is_not_finished_is_trained_on(flags, start_again):
    assert start_again(**flags) == 7
