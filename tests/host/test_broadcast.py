"""What one process may send to the others of its training."""

import io
import pickle

import pytest
import torch
from fairseq.distributed import utils as distributed_utils
from omegaconf import OmegaConf

from fairseq_plugins.host.broadcast import BROADCAST_CLASSES


class Channel:
    """Carries what the first of two processes sends to the second, one after the other in this process."""

    def __init__(self, monkeypatch):
        self.sent, self.rank = [], 0
        monkeypatch.setattr(distributed_utils, "get_rank", lambda group: self.rank)
        monkeypatch.setattr(distributed_utils, "broadcast", self.broadcast)
        monkeypatch.setattr(distributed_utils, "broadcast_tensors", lambda tensors, *args: tensors)

    def broadcast(self, tensor, src, group):
        if self.rank == src:
            self.sent.append(tensor.clone())
        else:
            tensor.copy_(self.sent.pop(0))


def test_a_configuration_arrives(monkeypatch):
    channel, device = Channel(monkeypatch), torch.device("cpu")
    checkpoint = {"cfg": OmegaConf.create({"model": {"arch": "lstm_lm_awd"}, "lr": [0.5]}), "epoch": 3}
    distributed_utils.broadcast_object(checkpoint, src_rank=0, group=None, dist_device=device)
    channel.rank = 1
    assert distributed_utils.broadcast_object(None, src_rank=0, group=None, dist_device=device) == checkpoint


def test_the_host_alone_refuses_a_configuration(monkeypatch):
    channel, device = Channel(monkeypatch), torch.device("cpu")
    distributed_utils.broadcast_object({"cfg": OmegaConf.create({"lr": 1})}, 0, None, device)
    channel.rank = 1
    with pytest.raises(pickle.UnpicklingError, match="omegaconf"):
        distributed_utils.broadcast_object.__wrapped__(None, 0, None, device)


def test_the_classes_are_allowed_meanwhile_only():
    buffer = io.BytesIO()
    torch.save(OmegaConf.create({"a": 1}), buffer)
    with torch.serialization.safe_globals(BROADCAST_CLASSES):
        assert torch.load(io.BytesIO(buffer.getvalue())) == {"a": 1}
    with pytest.raises(pickle.UnpicklingError):
        torch.load(io.BytesIO(buffer.getvalue()))
