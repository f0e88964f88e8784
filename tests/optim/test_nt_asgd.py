"""The non-monotone trigger and the host's optimiser around it."""

import math
from types import SimpleNamespace

import pytest
import torch
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.tasks import TASK_REGISTRY
from omegaconf import OmegaConf
from torch import nn

from fairseq_plugins.optim.nt_asgd import NTASGD, is_triggered
from fairseq_plugins.optim.validation_protocol import FollowsValidation

INF = math.inf

TABLE = [
    # values, n, triggered
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
    cfg = SimpleNamespace(
        **{
            **dict(lr=[0.5], weight_decay=0.0, task="stateful_lm", lr_scheduler="fixed", fp16=False, bf16=False),
            **dict(disable_validation=False),
            **dict(averaging=averaging, nonmonotone_interval=nonmonotone_interval),
            **flags,
        }
    )
    return model, NTASGD(cfg, list(model.parameters()))


def update(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(1, 3)).pow(2).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("values, nonmonotone_interval, expected", TABLE)
def test_trigger(values, nonmonotone_interval, expected):
    assert is_triggered(values, nonmonotone_interval) is expected


def test_averaging_starts_at_the_trigger_and_stays():
    _, optimizer = make()
    for loss, averaging in [(5.0, False), (4.0, False), (4.0, False), (4.5, True), (3.0, True), (9.0, True)]:
        optimizer.record_validation(loss)
        assert optimizer.optimizer.is_averaging is averaging
    assert optimizer.get_lr() == 0.5


def test_a_second_trigger_does_not_start_the_average_anew():
    model, optimizer = make()
    optimizer.record_validation(1.0)
    optimizer.record_validation(2.0)
    update(model, optimizer)
    optimizer.record_validation(3.0)
    assert optimizer.param_groups[0]["num_averaged"] == 1


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


def test_the_history_of_validation_is_saved():
    _, optimizer = make(nonmonotone_interval=1)
    for loss in (5.0, 4.0):
        optimizer.record_validation(loss)
    _, resumed = make(nonmonotone_interval=1)
    resumed.load_state_dict(optimizer.state_dict())
    resumed.record_validation(5.5)
    assert resumed.optimizer.is_averaging


def test_a_finished_training_stays_finished():
    _, optimizer = make(averaging="immediate")
    optimizer.record_validation(1.0)
    optimizer.record_validation(2.0)
    _, resumed = make(averaging="immediate")
    resumed.load_state_dict(optimizer.state_dict())
    assert resumed.get_lr() == -math.inf


def test_a_finished_training_goes_on_where_another_setting_lets_it():
    _, optimizer = make(averaging="immediate")
    optimizer.record_validation(1.0)
    optimizer.record_validation(2.0)
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
        (
            dict(averaging="immediate", lr_scheduler="cosine"),
            "--lr-scheduler cosine: use fixed or reduce_lr_on_plateau",
        ),
    ],
)
def test_what_cannot_work_is_refused(flags, told):
    with pytest.raises(ValueError, match=told):
        make(**flags)


@pytest.mark.parametrize("averaging, lost", [("triggered", "starts averaging"), ("immediate", "ends the training")])
def test_a_training_that_never_validates_is_told_what_it_lacks(averaging, lost, caplog):
    make(averaging, disable_validation=True)
    assert f"{lost} by what it validates: with --disable-validation it never does" in caplog.text
    caplog.clear()
    make(averaging)
    assert not caplog.text


def test_a_task_with_hooks_of_the_host_alone_is_refused(monkeypatch):
    """``post_validate`` is called by the host, and says nothing about optimisers."""
    monkeypatch.setitem(TASK_REGISTRY, "hooks", type("Hooks", (), {"post_validate": lambda *args: None}))
    with pytest.raises(ValueError, match="--task hooks"):
        make(task="hooks")
    monkeypatch.setitem(TASK_REGISTRY, "reports", type("Reports", (), {"report_validation": lambda *args: None}))
    assert isinstance(make(task="reports")[1], FollowsValidation)


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


def test_fine_tuning_refuses_the_state_of_a_plain_training():
    plain = make()[1].state_dict()
    with pytest.raises(ValueError, match="--finetune-from-model, or add --reset-optimizer"):
        make(averaging="immediate")[1].load_state_dict(plain)


def test_fine_tuning_refuses_a_plain_training_of_an_earlier_version():
    saved = make()[1].state_dict()
    del saved["param_groups"][0]["averaging"]
    with pytest.raises(ValueError, match="--finetune-from-model, or add --reset-optimizer"):
        make(averaging="immediate")[1].load_state_dict(saved)


def test_fine_tuning_refuses_an_average_that_was_triggered():
    model, optimizer = make()
    for loss in (1.0, 2.0):
        optimizer.record_validation(loss)
    update(model, optimizer)
    update(model, optimizer)
    with pytest.raises(ValueError, match="--finetune-from-model, or add --reset-optimizer"):
        make(averaging="immediate")[1].load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize("averaging", ["triggered", "immediate"])
def test_states_of_earlier_versions_do_not_name_the_kind_of_averaging(averaging):
    model, optimizer = make(averaging=averaging)
    update(model, optimizer)
    saved = optimizer.state_dict()
    del saved["param_groups"][0]["averaging"]
    _, resumed = make(averaging=averaging)
    resumed.load_state_dict(saved)
    assert resumed.state_dict()["param_groups"][0]["averaging"] == averaging
