"""A training that ended by itself is started again with the same flags."""

import fairseq_cli.train
import pytest
from commands import load, training_arguments
from fairseq import checkpoint_utils

pytestmark = pytest.mark.slow
# steps so small that five digits of the loss stay as they are: the second epoch is no better, and the last
NO_PATIENCE = ["--clip-norm", 1e-9, "--patience", 1]


@pytest.fixture
def train_again(data, tmp_path, run_here):
    """``train_again(*flags)``: numbers of updates after the first and the second start."""

    def train(*flags):
        found = []
        for _ in range(2):
            run_here(fairseq_cli.train, *training_arguments(data, tmp_path, "--max-epoch", 4, *flags))
            found.append(load(tmp_path / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"])
        return found

    return train


@pytest.mark.parametrize("flags", [["--max-update", 3], NO_PATIENCE], ids=["updates", "patience"])
def test_it_stays_as_it_is(flags, train_again):
    first, second = train_again(*flags)
    assert first == second


def test_fairseq_alone_trains_on(train_again, monkeypatch):
    monkeypatch.setattr(checkpoint_utils, "load_checkpoint", checkpoint_utils.load_checkpoint.__wrapped__)
    assert train_again("--max-update", 3) == [3, 4]
