"""What the host's optimisers in 16 bits save and load."""

from argparse import Namespace
from copy import deepcopy

import pytest
import torch
from fairseq.optim import FP16Optimizer, MemoryEfficientFP16Optimizer
from fairseq.optim.sgd import SGD

SETTINGS = [(FP16Optimizer, "bf16"), (FP16Optimizer, "fp16"), (MemoryEfficientFP16Optimizer, "fp16")]
OVERFLOW = 1e6


class Training:
    """A vector of 16 bits that is drawn to zero; it starts at ``weight``."""

    def __init__(self, kind, precision, weight):
        self.weight = torch.nn.Parameter(weight.to(torch.bfloat16 if precision == "bf16" else torch.float16))
        common = Namespace(
            bf16=precision == "bf16",
            fp16_init_scale=128.0,
            fp16_scale_window=4,
            fp16_scale_tolerance=0.0,
            threshold_loss_scale=None,
            min_loss_scale=1e-4,
        )
        sgd = Namespace(lr=[0.01], momentum=0.9, weight_decay=0.0)
        cfg = Namespace(common=common, optimizer=sgd)
        if kind is FP16Optimizer:
            masters = kind.build_fp32_params(sgd, [self.weight], flatten=False)
            self.optimizer = kind(cfg, [self.weight], SGD(sgd, masters), masters)
        else:
            self.optimizer = kind(cfg, [self.weight], SGD(sgd, [self.weight]), allow_unsupported=True)

    def update(self, slope):
        self.optimizer.zero_grad()
        self.optimizer.backward((self.weight * slope).square().sum())
        try:
            self.optimizer.clip_grad_norm(0.5)
            self.optimizer.step()
        except OverflowError:
            assert slope == OVERFLOW


def weights_and_scales(training, slopes):
    found = []
    for slope in slopes:
        training.update(slope)
        scaler = training.optimizer.scaler
        found.append((training.weight.tolist(), None if scaler is None else scaler.loss_scale))
    return found


def stopped_and_resumed(kind, precision):
    stopped = Training(kind, precision, torch.linspace(-1, 1, 100))
    weights_and_scales(stopped, [1, 1, 1] if precision == "bf16" else [1, 1, OVERFLOW, 1, 1])
    return stopped, Training(kind, precision, stopped.weight.detach().clone())


@pytest.mark.parametrize("kind, precision", SETTINGS)
def test_a_training_goes_on_bit_for_bit(kind, precision):
    stopped, resumed = stopped_and_resumed(kind, precision)
    resumed.optimizer.load_state_dict(deepcopy(stopped.optimizer.state_dict()))
    assert weights_and_scales(resumed, [1] * 6) == weights_and_scales(stopped, [1] * 6)


@pytest.mark.parametrize("kind, precision", SETTINGS)
def test_the_host_alone_forgets_the_weights_in_32_bits(kind, precision):
    stopped, resumed = stopped_and_resumed(kind, precision)
    saved = deepcopy(kind.state_dict.__wrapped__(stopped.optimizer))
    kind.load_state_dict.__wrapped__(resumed.optimizer, saved)
    assert weights_and_scales(resumed, [1] * 6) != weights_and_scales(stopped, [1] * 6)


@pytest.mark.parametrize("kind, precision", SETTINGS)
def test_a_state_that_the_host_saved_is_loaded(kind, precision):
    stopped, resumed = stopped_and_resumed(kind, precision)
    resumed.optimizer.load_state_dict(kind.state_dict.__wrapped__(stopped.optimizer))
    assert torch.equal(resumed.weight, stopped.weight)


def test_the_weights_of_another_precision_are_passed_over():
    stopped, _ = stopped_and_resumed(FP16Optimizer, "fp16")
    _, resumed = stopped_and_resumed(MemoryEfficientFP16Optimizer, "fp16")
    before = resumed.weight.clone()
    resumed.optimizer.load_state_dict(stopped.optimizer.state_dict())
    assert torch.equal(resumed.weight, before)
