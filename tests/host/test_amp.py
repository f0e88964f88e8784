"""The host's optimiser for --amp; that it clips correctly is tested with the task."""

from argparse import Namespace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from fairseq.optim import AMPOptimizer

from fairseq_plugins.optim.nt_asgd import NTASGD


class Scaler:
    def __init__(self):
        self.calls = []

    def step(self, optimizer):
        self.calls.append(optimizer)

    def update(self):
        self.calls.append("update")


@pytest.mark.parametrize("step, stepped", [(AMPOptimizer.step, "inner"), (AMPOptimizer.step.__wrapped__, "wrapper")])
def test_what_is_stepped(step, stepped):
    optimizer = SimpleNamespace(scaler=Scaler(), optimizer="inner", fp32_optimizer="wrapper")
    step(optimizer)
    assert optimizer.scaler.calls == [stepped, "update"]


@pytest.mark.parametrize(
    "initialise, grows_after", [(AMPOptimizer.__init__, 500), (AMPOptimizer.__init__.__wrapped__, 64)]
)
def test_after_how_many_updates_the_scale_of_the_loss_grows(initialise, grows_after, monkeypatch):
    # without a GPU the host's scaler is off and holds no interval
    monkeypatch.setattr(torch.cuda.amp, "GradScaler", partial(torch.amp.GradScaler, "cpu"))
    common = Namespace(fp16_init_scale=128, amp_init_scale=64, amp_scale_window=500, min_loss_scale=1e-4)
    optimizer = AMPOptimizer.__new__(AMPOptimizer)
    initialise(optimizer, Namespace(common=common, optimizer=None), [], None)
    assert optimizer.scaler.get_growth_interval() == grows_after


def built(averaging="triggered"):
    flags = dict(
        nonmonotone_interval=1, averaging=averaging, task="stateful_lm", lr_scheduler="fixed", weight_decay=0.0
    )
    inner = NTASGD(
        Namespace(**flags, fp16=False, bf16=False, disable_validation=False, lr=[1.0]),
        [torch.nn.Parameter(torch.ones(2))],
    )
    common = Namespace(fp16_init_scale=128, amp_scale_window=None, min_loss_scale=1e-4)
    optimizer = AMPOptimizer(Namespace(common=common, optimizer=None), [], inner)
    optimizer._grad_scaler = torch.amp.GradScaler("cpu", init_scale=128.0, growth_interval=2)
    return optimizer


def test_the_scale_of_the_loss_is_saved_and_goes_on():
    stopped, resumed = built(), built()
    for _ in range(3):
        stopped.backward(stopped.optimizer.param_groups[0]["params"][0].sum())
        stopped.step()
        stopped.zero_grad()
    saved = stopped.state_dict()
    assert stopped.scaler.get_scale() == 256
    resumed.load_state_dict(saved)
    assert resumed.scaler.state_dict() == stopped.scaler.state_dict()


def test_a_state_without_a_scale_is_loaded():
    resumed = built()
    resumed.load_state_dict(resumed.fp32_optimizer.state_dict())
    assert resumed.scaler.get_scale() == 128


def test_the_wrapped_optimizer_checks_what_it_loads():
    with pytest.raises(ValueError, match="--averaging immediate needs a fresh average"):
        built("immediate").load_state_dict(built("triggered").state_dict())
