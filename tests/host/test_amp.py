"""The host's optimiser for --amp; that it clips correctly is tested with the task."""

from types import SimpleNamespace

import pytest
from fairseq.optim import AMPOptimizer


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
