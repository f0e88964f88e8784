"""The non-monotone trigger and averaged SGD."""

import copy
import math
from types import SimpleNamespace

import pytest
import torch
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.tasks import TASK_REGISTRY
from omegaconf import OmegaConf
from torch import nn

from fairseq_plugins.optim.nt_asgd import NTASGD, AveragedSGD, is_triggered

INF = math.inf

TABLE = [
    # values, n, triggered
    ([], 0, False),
    ([5.0], 0, False),
    ([5.0, 6.0], 0, True),
    ([5.0, 5.0], 0, False),
    ([5.0, 4.0], 0, False),
    ([5.0, 4.0, 4.5], 0, True),
    ([5.0, 6.0], 1, False),
    ([5.0, 4.0, 4.5], 1, False),
    ([5.0, 4.0, 5.0], 1, False),
    ([5.0, 4.0, 5.1], 1, True),
    ([5.0, 4.0, 1.0, 3.0], 1, False),
    ([5.0, 4.0, 1.0, 4.1], 1, True),
    ([2.0, 3.0, 4.0, 4.0, 2.5], 2, True),
    ([3.0, 2.0, 4.0, 4.0, 2.5], 2, True),
    ([3.0, 3.0, 2.0, 4.0, 2.5], 2, False),
    ([3.0, 9.0, 9.0, 9.0, 9.0, 3.1], 5, False),
    ([3.0, 9.0, 9.0, 9.0, 9.0, 9.0, 3.1], 5, True),
    ([3.0, 9.0, 9.0, 9.0, 9.0, 9.0, 3.0], 5, False),
    ([3.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.9], 5, False),
    ([1.0] * 60 + [2.0], 60, False),
    ([1.0] * 61 + [2.0], 60, True),
    ([1.0, INF], 0, True),
    ([INF, INF], 0, False),
]


def make(averaging="triggered", nonmonotone_interval=0, **flags):
    model = nn.Linear(3, 2)
    given = dict(lr=[0.5], weight_decay=0.0, task="stateful_lm", lr_scheduler="fixed", fp16=False, bf16=False)
    given.update(disable_validation=False, averaging=averaging, nonmonotone_interval=nonmonotone_interval)
    return model, NTASGD(SimpleNamespace(**{**given, **flags}), list(model.parameters()))


def update(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(1, 3)).pow(2).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("values, nonmonotone_interval, expected", TABLE)
def test_trigger(values, nonmonotone_interval, expected):
    assert is_triggered(values, nonmonotone_interval) is expected


def test_averaging_starts_at_the_trigger_and_stays():
    model, optimizer = make()
    for loss, averaging in [(5.0, False), (4.0, False), (4.0, False), (4.5, True), (3.0, True), (9.0, True)]:
        optimizer.record_validation(loss)
        assert optimizer.optimizer.is_averaging is averaging
        update(model, optimizer)
    assert optimizer.get_lr() == 0.5
    assert optimizer.param_groups[0]["num_averaged"] == 3, "a second trigger does not start the average anew"


def test_immediate_averages_from_the_first_update_and_the_trigger_ends_the_training():
    model, optimizer = make(averaging="immediate")
    assert optimizer.optimizer.is_averaging
    update(model, optimizer)
    optimizer.record_validation(2.0)
    optimizer.record_validation(1.0)
    assert optimizer.get_lr() == 0.5
    optimizer.record_validation(1.5)
    assert optimizer.get_lr() == -math.inf


@pytest.mark.parametrize("averaging", ["triggered", "immediate"])
def test_the_log_names_the_best_old_value(averaging, caplog):
    _, optimizer = make(averaging=averaging)
    with caplog.at_level("INFO"):
        for value in (3.0, 1.0, 2.0):
            optimizer.record_validation(value)
    assert "validation loss 2.00000 is above 1.00000" in caplog.text


def test_a_finished_training_stays_finished_but_goes_on_where_another_setting_lets_it():
    _, optimizer = make(averaging="immediate")
    optimizer.record_validation(1.0)
    optimizer.record_validation(2.0)
    _, same = make(averaging="immediate")
    same.load_state_dict(optimizer.state_dict())
    assert same.get_lr() == -math.inf
    for flags in (dict(averaging="triggered"), dict(averaging="immediate", nonmonotone_interval=1)):
        _, resumed = make(**flags)
        resumed.load_state_dict(optimizer.state_dict())
        assert resumed.get_lr() > 0
        _, again = make(**flags)
        again.load_state_dict(resumed.state_dict())
        assert again.get_lr() > 0


def test_the_first_learning_rate_and_the_weight_decay_reach_the_updates():
    model, optimizer = make(lr=[0.25], weight_decay=0.1)
    before = model.weight.detach().clone()
    optimizer.zero_grad()
    model.weight.grad = torch.ones_like(model.weight)
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), before - 0.25 * (1 + 0.1 * before), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "flags, told",
    [
        (dict(nonmonotone_interval=-1), "--nonmonotone-interval -1"),
        (dict(weight_decay=-1.0), "--weight-decay -1.0: give 0 or more"),
        (dict(task="language_modeling"), "--task language_modeling.*--task stateful_lm"),
        (dict(task="no_such_task"), "--task no_such_task"),
        (dict(fp16=True), "--fp16"),
        (dict(bf16=True), "--bf16"),
        (dict(averaging="immediate", lr_scheduler="cosine"), "--lr-scheduler cosine: use fixed or reduce_lr_on_plat"),
    ],
)
def test_what_cannot_work_is_refused(flags, told):
    with pytest.raises(ValueError, match=told):
        make(**flags)


def test_losses_of_another_validation_set_are_forgotten_and_a_run_that_had_ended_goes_on():
    _, optimizer = make()
    optimizer.record_validation(1.0)
    optimizer.forget_validations()
    optimizer.record_validation(2.0)
    assert not optimizer.optimizer.is_averaging
    _, ended = make("immediate")
    ended.record_validation(1.0)
    ended.record_validation(2.0)
    assert ended.get_lr() == -math.inf
    ended.forget_validations()
    assert ended.get_lr() > 0


@pytest.mark.parametrize("averaging, lost", [("triggered", "starts averaging"), ("immediate", "ends the run")])
def test_a_training_that_never_validates_is_told_what_it_lacks(averaging, lost, caplog):
    make(averaging, disable_validation=True)
    assert f"{lost} only after a validation, and --disable-validation makes none" in caplog.text
    caplog.clear()
    make(averaging)
    assert not caplog.text


def test_a_task_with_hooks_of_fairseq_alone_is_refused(monkeypatch):
    """``post_validate`` is called by fairseq, and says nothing about optimisers."""
    monkeypatch.setitem(TASK_REGISTRY, "hooks", type("Hooks", (), {"post_validate": lambda *args: None}))
    with pytest.raises(ValueError, match="--task hooks"):
        make(task="hooks")
    monkeypatch.setitem(TASK_REGISTRY, "reports", type("Reports", (), {"reports_validation": True}))
    make(task="reports")


@pytest.mark.parametrize("scale", [1.0, 128.0])
def test_updates_under_amp_do_not_depend_on_the_loss_scale(scale):
    model, optimizer = make()
    nn.init.zeros_(model.weight)
    common = {"fp16_init_scale": scale, "min_loss_scale": 1e-4}
    amp = AMPOptimizer.__new__(AMPOptimizer)
    amp.cfg, amp.fp32_optimizer, amp.min_loss_scale = OmegaConf.create(common), optimizer, 1e-4
    amp._grad_scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    amp.zero_grad()
    amp.backward(2 * model(torch.ones(1, 3)).sum())
    amp.clip_grad_norm(0.0)
    amp.step()
    torch.testing.assert_close(model.weight.detach(), torch.full_like(model.weight, -0.5 * 2))


@pytest.mark.parametrize("losses", [(), (1.0, 2.0)], ids=["plain", "triggered"])
def test_fine_tuning_refuses_the_state_of_another_training(losses):
    model, optimizer = make()
    for loss in losses:
        optimizer.record_validation(loss)
    update(model, optimizer)
    update(model, optimizer)
    with pytest.raises(ValueError, match="--finetune-from-model, or add --reset-optimizer"):
        make(averaging="immediate")[1].load_state_dict(optimizer.state_dict())


LR, NUM_STEPS = 0.3, 10


@pytest.fixture
def float64():
    """The library keeps step sizes and averaging weights in the default type."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def make_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def batch(step):
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(step))


def backward(model, step):
    model(batch(step)).pow(2).sum().mul(0.1).backward()


def update_averaged(model, optimizer, step):
    """One update as fairseq makes it; returns the raw weights before it."""
    optimizer.zero_grad()
    raw = weights(model)
    backward(model, step)
    optimizer.step()
    return raw


def weights(model):
    return [param.detach().clone() for param in model.parameters()]


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
def test_averages_and_iterates_are_those_of_the_librarys_asgd(weight_decay):
    model, reference = make_model(), make_model()
    ours = AveragedSGD(model.parameters(), lr=LR, weight_decay=weight_decay)
    theirs = torch.optim.ASGD(reference.parameters(), lr=LR, lambd=0, t0=0, weight_decay=weight_decay)
    ours.start_averaging()
    for step in range(NUM_STEPS):
        raw = update_averaged(model, ours, step)
        torch.testing.assert_close(raw, weights(reference), rtol=1e-13, atol=1e-14)
        theirs.zero_grad()
        backward(reference, step)
        theirs.step()
        means = [theirs.state[param]["ax"] for param in reference.parameters()]
        torch.testing.assert_close(weights(model), means, rtol=1e-13, atol=1e-14)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
def test_before_averaging_it_is_plain_sgd(weight_decay):
    model, reference = make_model(), make_model()
    ours = AveragedSGD(model.parameters(), lr=LR, weight_decay=weight_decay)
    theirs = torch.optim.SGD(reference.parameters(), lr=LR, weight_decay=weight_decay)
    for step in range(NUM_STEPS):
        update_averaged(model, ours, step)
        update_averaged(reference, theirs, step)
        assert equal(weights(model), weights(reference))
    assert not ours.is_averaging


@pytest.mark.usefixtures("float64")
def test_the_model_holds_the_average_except_from_zero_grad_to_step():
    model, reference = make_model(), make_model()
    optimizer = AveragedSGD(model.parameters(), lr=LR)
    raw_optimizer = torch.optim.SGD(reference.parameters(), lr=LR)
    optimizer.start_averaging()
    for step in range(4):
        update_averaged(model, optimizer, step)
        update_averaged(reference, raw_optimizer, step)
    average, raw = weights(model), weights(reference)
    assert not equal(average, raw)
    optimizer.zero_grad()
    assert equal(weights(model), raw)
    assert equal([optimizer.state[param]["exchanged"] for param in model.parameters()], average)
    backward(model, 4)
    assert equal(weights(model), raw)
    optimizer.zero_grad()  # again
    assert equal(weights(model), raw) and all(param.grad is None for param in model.parameters())


@pytest.mark.usefixtures("float64")
def test_a_step_on_the_average_is_a_programming_error():
    model = make_model()
    optimizer = AveragedSGD(model.parameters(), lr=LR)
    optimizer.start_averaging()
    update_averaged(model, optimizer, 0)
    with pytest.raises(AssertionError, match="zero_grad"):
        optimizer.step()


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("start, stop", [(0, 1), (0, 2), (0, 5), (3, 2), (3, 4), (3, 5)])
def test_a_saved_state_goes_on_bit_for_bit(start, stop):
    def run(model, optimizer, steps):
        for step in steps:
            if step == start:
                optimizer.start_averaging()
            update_averaged(model, optimizer, step)

    model = make_model()
    optimizer = AveragedSGD(model.parameters(), lr=LR, weight_decay=0.05)
    run(model, optimizer, range(stop))
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    run(model, optimizer, range(stop, NUM_STEPS))

    resumed = make_model(seed=9)
    resumed_optimizer = AveragedSGD(resumed.parameters(), lr=LR, weight_decay=0.05)
    resumed.load_state_dict(saved[0])
    resumed_optimizer.load_state_dict(saved[1])
    run(resumed, resumed_optimizer, range(stop, NUM_STEPS))
    assert equal(weights(resumed), weights(model))
    optimizer.zero_grad(), resumed_optimizer.zero_grad()
    assert equal(weights(resumed), weights(model))


@pytest.mark.usefixtures("float64")
def test_a_learning_rate_acts_on_the_update_it_is_set_for():
    model, reference = make_model(), make_model()
    ours = AveragedSGD(model.parameters(), lr=LR)
    theirs = torch.optim.SGD(reference.parameters(), lr=LR)
    ours.start_averaging()
    for step, lr in enumerate([0.3, 0.1, 0.5]):
        for optimizer in (ours, theirs):
            optimizer.param_groups[0]["lr"] = lr
        update_averaged(model, ours, step)
        update_averaged(reference, theirs, step)
    ours.zero_grad()
    assert equal(weights(model), weights(reference))
