"""What checkpoints may hold."""

import pickle
from argparse import Namespace

import pytest
import torch


@pytest.fixture
def host_alone():
    """torch as it is without this package."""
    allowed = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    yield
    torch.serialization.add_safe_globals(allowed)


def test_checkpoint_with_a_namespace_is_read(save_checkpoint):
    state = torch.load(save_checkpoint(args=Namespace(arch="lstm_lm_awd")))
    assert state["args"].arch == "lstm_lm_awd"


def test_the_host_alone_refuses_a_namespace(save_checkpoint, host_alone):
    path = save_checkpoint(args=Namespace(arch="lstm_lm_awd"))
    with pytest.raises(pickle.UnpicklingError, match="argparse.Namespace"):
        torch.load(path)
