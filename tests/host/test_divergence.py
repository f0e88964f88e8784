"""What a training is told that diverges; the commands are tested in integration/test_diverging_trainings.py."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from fairseq import optim
from fairseq import trainer as host_trainer
from fairseq.nan_detector import NanDetector
from fairseq.trainer import Trainer
from torch import nn

from fairseq_plugins.host.divergence import _check_loss, _check_valid_loss


def make_trainer(gradients, *, fp16=False, clip_norm=0.25):
    """What ``Trainer.clip_grad_norm`` reads of a trainer; two weights with these gradients."""
    model = nn.ParameterDict({f"weight{place}": nn.Parameter(torch.ones(2)) for place in range(len(gradients))})
    for weight, gradient in zip(model.values(), gradients):
        weight.grad = gradient
    settings = SimpleNamespace(lr=[0.5], momentum=0.0, weight_decay=0.0)
    return SimpleNamespace(
        cfg=SimpleNamespace(
            common=SimpleNamespace(fp16=fp16, amp=False), optimization=SimpleNamespace(clip_norm=clip_norm)
        ),
        is_fsdp=False,
        device=torch.device("cpu"),
        optimizer=optim.OPTIMIZER_REGISTRY["sgd"](settings, list(model.parameters())),
        get_model=lambda: model,
        get_lr=lambda: 0.5,
        get_num_updates=lambda: 6,
        get_criterion=lambda: SimpleNamespace(penalty_factors={"--balance": 2.0}),
    )


ONES, NAN, INFINITE = (torch.tensor([1.0, value]) for value in (1.0, float("nan"), float("inf")))
HUGE = torch.tensor([1.0, 3e38])


@pytest.mark.parametrize(
    "gradients, told",
    [
        ([ONES, NAN], "gradients are infinite or no numbers in weight1;"),
        ([INFINITE, NAN], "gradients are infinite or no numbers in weight0 and 1 others;"),
        ([ONES, HUGE], r"the gradients' norm is infinite, the largest is 3e\+38 in weight1;"),
    ],
)
def test_gradients_are_named_before_they_are_clipped(gradients, told):
    trainer = make_trainer(gradients)
    lower = r"lower --lr \(now 0.5\), --clip-norm \(now 0.25\), --balance \(now 2\)"
    with pytest.raises(FloatingPointError, match=f"^the training diverged at update 7: {told} {lower}$"):
        Trainer.clip_grad_norm(trainer, 0.25)


def test_clipping_is_advised():
    with pytest.raises(FloatingPointError, match=r"lower --lr \(now 0.5\), --balance \(now 2\), or give --clip-norm$"):
        Trainer.clip_grad_norm(make_trainer([NAN], clip_norm=0), 0)


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_without_a_number_ends_the_training(loss):
    logged = [{"loss": 3.5}, {"loss": loss}, None]
    step = partial(_check_loss, lambda trainer: logged.pop(0))
    trainer = make_trainer([ONES, ONES])
    assert step(trainer) == {"loss": 3.5}
    told = "^the training diverged at update 6: the loss is infinite or no number, the largest weight is 1 in weight1;"
    with pytest.raises(ValueError, match=told):
        step(trainer)
    assert step(trainer) is None


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
@pytest.mark.parametrize("fp16", [False, True])
def test_a_validation_without_a_number_ends_the_training(loss, fp16):
    logged = [{"loss": 3.5}, {"loss": loss}]
    step = partial(_check_valid_loss, lambda trainer: logged.pop(0))
    trainer = make_trainer([ONES, ONES], fp16=fp16)
    assert step(trainer) == {"loss": 3.5}
    told = "^the training diverged at update 6: the loss of validation is infinite or no number, the largest weight is"
    with pytest.raises(ValueError, match=told):
        step(trainer)


def test_weights_come_first():
    trainer = make_trainer([NAN, NAN])
    nn.init.constant_(trainer.get_model()["weight1"], float("inf"))
    with pytest.raises(FloatingPointError, match="weights are infinite or no numbers in weight1;"):
        Trainer.clip_grad_norm(trainer, 0.25)


def test_what_is_finite_is_clipped_as_by_the_host():
    first, second = (make_trainer([ONES.clone(), 3 * ONES]) for _ in range(2))
    assert Trainer.clip_grad_norm(first, 0.25) == Trainer.clip_grad_norm.__wrapped__(second, 0.25)
    for one, other in zip(first.get_model().values(), second.get_model().values()):
        assert torch.equal(one.grad, other.grad) and one.grad.norm() < 0.25


class NormElsewhere(torch.Tensor):
    """Stands for one on a GPU: it tells where it is brought."""

    def to(self, device):
        return torch.full((), 7.0, device=device)


def test_the_norm_is_brought_to_where_the_trainer_is():
    trainer = make_trainer([ONES])
    norm = torch.ones(()).as_subclass(NormElsewhere)
    trainer.optimizer = SimpleNamespace(clip_grad_norm=lambda clip_norm, aggregate_norm_fn: aggregate_norm_fn(norm))
    assert Trainer.clip_grad_norm(trainer, 0.25) == 7


def test_scaled_gradients_are_left_to_the_host():
    assert Trainer.clip_grad_norm(make_trainer([ONES, INFINITE], fp16=True), 0) == float("inf")


def test_the_error_of_the_host_is_told_in_place_of_a_search():
    with pytest.raises(ValueError, match="^Fatal error: inconsistent$"):
        try:
            raise FloatingPointError("Fatal error: inconsistent\nrank 0 = 1")
        except FloatingPointError:
            host_trainer.NanDetector(nn.Linear(2, 2))


class Typed(nn.Module):
    """Answers with what is no tensor, as stacks of this package do."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self):
        return SimpleNamespace(output=self.weight)


def test_the_host_alone_ends_in_its_hooks():
    trainer = make_trainer([ONES, NAN.clone()])
    Trainer.clip_grad_norm.__wrapped__(trainer, 0.25)
    assert trainer.get_model()["weight0"].grad.isnan().all()
    with pytest.raises(TypeError, match="not subscriptable"), NanDetector(Typed()) as detector:
        assert detector.bhooks
        detector.named_parameters = []
        model = Typed()
        model.register_backward_hook(detector.bhook_fn)
        model()
