"""Adam with decay in the gradient and damped Adagrad, as fairseq drives them."""

import copy
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from fairseq.optim.adagrad import Adagrad as FairseqAdagrad
from torch import nn

from fairseq_plugins.optim.adaptive import DampedAdagrad, L2Adam

NUM_STEPS, LR, EPS = 7, 0.03, 1e-8


def config(weight_decay, *, lr=LR, betas="(0.9, 0.999)", eps=EPS, eps_added="after-correction"):
    return SimpleNamespace(lr=[lr], adam_betas=betas, adam_eps=eps, adam_eps_added=eps_added, weight_decay=weight_decay)


def make(weight_decay, *, dtype=torch.float64, **flags):
    torch.manual_seed(3)
    model = nn.Linear(3, 2).to(dtype)
    return model, L2Adam(config(weight_decay, **flags), model.parameters())


def backward(model, step, *, factor=1.0):
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(step))
    (factor * model(x.to(model.weight)).pow(2).sum()).backward()


def update(model, optimizer, step, *, clip=0.0):
    optimizer.zero_grad()
    backward(model, step)
    if clip:
        optimizer.clip_grad_norm(clip)
    optimizer.step()


def by_hand(model, *, weight_decay, betas, clip=math.inf, eps=EPS, eps_added="after-correction"):
    """Adam of Kingma & Ba 2015, algorithm 1, whose gradient is clipped and then has the decay added.

    With the epsilon before the correction it is the form that they give before section 2.1.
    """
    parameters = list(model.parameters())
    m, v = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    for t in range(1, NUM_STEPS + 1):
        model.zero_grad()
        backward(model, t)
        norm = torch.cat([p.grad.flatten() for p in parameters]).norm()
        with torch.no_grad():
            for i, p in enumerate(parameters):
                g = p.grad * min(1.0, clip / norm.item()) + weight_decay * p
                m[i] = betas[0] * m[i] + (1 - betas[0]) * g
                v[i] = betas[1] * v[i] + (1 - betas[1]) * g**2
                mean, correction = m[i] / (1 - betas[0] ** t), 1 - betas[1] ** t
                if eps_added == "after-correction":
                    p -= LR * mean / ((v[i] / correction).sqrt() + eps)
                else:
                    p -= LR * correction**0.5 * mean / (v[i].sqrt() + eps)


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.7, 0.95)])
def test_decay_is_added_to_the_gradient_after_clipping(betas):
    """fairseq's clipping takes float32 alone, and adds 1e-6 to the norm that it divides by."""
    model, optimizer = make(0.1, betas=str(betas), dtype=torch.float32)
    expected = copy.deepcopy(model)
    for step in range(1, NUM_STEPS + 1):
        update(model, optimizer, step, clip=0.1)
    by_hand(expected, weight_decay=0.1, betas=betas, clip=0.1)
    torch.testing.assert_close(list(model.parameters()), list(expected.parameters()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.95)])
@pytest.mark.parametrize("eps_added", ["after-correction", "before-correction"])
def test_epsilon_is_added_before_or_after_the_correction(eps_added, betas, weight_decay):
    """With a large one, for the two forms to differ; a training is stopped and resumed on the way."""
    flags = dict(betas=str(betas), eps=0.5, eps_added=eps_added)
    model, optimizer = make(weight_decay, **flags)
    expected = copy.deepcopy(model)
    for step in range(1, NUM_STEPS + 1):
        update(model, optimizer, step)
        if step == 3:
            saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
            model, optimizer = make(weight_decay, **flags)
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1], optimizer.optimizer_config)
    by_hand(expected, weight_decay=weight_decay, betas=betas, eps=0.5, eps_added=eps_added)
    torch.testing.assert_close(list(model.parameters()), list(expected.parameters()), rtol=1e-12, atol=1e-12)
    assert optimizer.state_dict()["param_groups"][0]["eps"] == 0.5


def test_a_run_resumes_with_the_flags_that_it_is_given():
    model, optimizer = make(0.1)
    update(model, optimizer, 1)
    _, resumed = make(0.2, betas="(0.5, 0.6)", eps=0.01, lr=1.0)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    (group,) = resumed.param_groups
    assert (group["weight_decay"], group["betas"], group["eps"]) == (0.2, (0.5, 0.6), 0.01)
    assert group["lr"] == LR, "the scheduler sets it"


def test_updates_of_a_run_with_the_other_form_are_counted():
    models = []
    for first in ("after-correction", "before-correction"):
        model, optimizer = make(0.1, eps=1e-9, eps_added=first)  # so small that the form does not matter
        update(model, optimizer, 1)
        _, resumed = make(0.1, eps=0.5, eps_added="before-correction")
        resumed.optimizer.param_groups[0]["params"] = list(model.parameters())
        resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        update(model, resumed, 2)
        models.append(model)
    torch.testing.assert_close(models[0].weight, models[1].weight, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("eps_added", ["after-correction", "before-correction"])
def test_an_update_that_amp_skips_does_not_count(eps_added):
    """fairseq takes a step of torch's scaler even if gradients have overflowed."""
    (model, optimizer), (expected, alone) = (make(0.1, eps=0.5, eps_added=eps_added) for _ in range(2))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for step, overflows in enumerate([False, False, True, False, False]):
        optimizer.zero_grad()
        backward(model, step, factor=scaler.scale(torch.tensor(math.inf if overflows else 1.0)))
        scaler.unscale_(optimizer.optimizer)
        scaler.step(optimizer.optimizer)
        scaler.update()
        if not overflows:
            update(expected, alone, step)
    torch.testing.assert_close(list(model.parameters()), list(expected.parameters()), rtol=1e-12, atol=1e-12)


def test_the_wrapped_optimizer_steps_alike_as_under_amp():
    (model, optimizer), (other, by_itself) = (make(0.1, eps=0.5, eps_added="before-correction") for _ in range(2))
    for step in range(NUM_STEPS):
        update(model, optimizer, step)
        by_itself.zero_grad()
        backward(other, step)
        by_itself.optimizer.step()
    assert torch.equal(model.weight, other.weight)


@pytest.mark.parametrize("betas", ["0.9", "0.9 0.99", "(0.9, 0.99, 0.999)", "(a, b)", "(0.9, 1)", "(-0.1, 0.9)"])
def test_what_are_no_betas_is_refused(betas):
    with pytest.raises(ValueError, match="--adam-betas .*give .*numbers"):
        make(0.0, betas=betas)


@pytest.mark.parametrize(
    "flag, value",
    [("adam_eps", 0.0), ("weight_decay", -1.0)],  # with an epsilon of zero, rows of absent words would be 0 / 0
)
def test_what_is_no_coefficient_is_refused(flag, value):
    cfg = SimpleNamespace(**{**vars(config(0.0)), flag: value})
    with pytest.raises(ValueError, match=f"--{flag.replace('_', '-')} {value}: give"):
        L2Adam(cfg, nn.Linear(2, 2).parameters())


def test_weights_may_lie_in_one_tensor_as_in_16_bit_training():
    model, optimizer = make(0.1)
    assert optimizer.supports_flat_params
    flat = nn.Parameter(torch.cat([p.detach().flatten() for p in model.parameters()]))
    joined = L2Adam(config(0.1), [flat])
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        backward(model, step)
        flat.grad = torch.cat([p.grad.flatten() for p in model.parameters()])
        optimizer.step()
        joined.step()
    torch.testing.assert_close(flat, torch.cat([p.flatten() for p in model.parameters()]), rtol=1e-14, atol=1e-14)


NUM_ADAGRAD_STEPS, ADAGRAD_LR, START = 6, 0.2, 0.03


def make_adagrad(*, start=START, weight_decay=0.0, lr=ADAGRAD_LR, dtype=torch.float64):
    torch.manual_seed(3)
    model = nn.Embedding(6, 3).to(dtype)
    cfg = SimpleNamespace(lr=[lr], initial_accumulator=start, weight_decay=weight_decay)
    return model, DampedAdagrad(cfg, model.parameters())


def backward_embedding(model, step, *, sparse=False):
    words = torch.tensor([[0, 1, 1], [2, 0, 4]][step % 2])
    (F.embedding(words, model.weight, sparse=sparse).cos() * (step + 1)).sum().backward()


def update_adagrad(model, optimizer, step, **flags):
    optimizer.zero_grad()
    backward_embedding(model, step, **flags)
    optimizer.step()


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("start", [0.0, START, 5.0])
def test_updates_of_adagrad_are_those_of_the_equation(start, weight_decay):
    model, optimizer = make_adagrad(start=start, weight_decay=weight_decay)
    expected = copy.deepcopy(model)
    squares = torch.full_like(expected.weight, start)
    for step in range(NUM_ADAGRAD_STEPS):
        update_adagrad(model, optimizer, step)
        expected.zero_grad()
        backward_embedding(expected, step)
        with torch.no_grad():
            gradient = expected.weight.grad + weight_decay * expected.weight
            squares += gradient**2
            expected.weight -= ADAGRAD_LR * gradient / (squares.sqrt() + 1e-10)
    torch.testing.assert_close(model.weight, expected.weight, rtol=1e-12, atol=1e-12)


def test_adagrad_from_zero_is_fairseqs():
    (model, ours), (other, _) = make_adagrad(start=0.0), make_adagrad()
    theirs = FairseqAdagrad(SimpleNamespace(lr=[ADAGRAD_LR], weight_decay=0.0), other.parameters())
    for step in range(NUM_ADAGRAD_STEPS):
        update_adagrad(model, ours, step)
        update_adagrad(other, theirs, step)
    assert torch.equal(model.weight, other.weight)


def test_sparse_gradients_change_their_rows_as_dense_ones_do():
    (model, optimizer), (other, dense) = make_adagrad(), make_adagrad()
    start = model.weight.detach().clone()
    for step in range(NUM_ADAGRAD_STEPS):
        update_adagrad(model, optimizer, step, sparse=True)
        assert model.weight.grad.is_sparse
        update_adagrad(other, dense, step)
    torch.testing.assert_close(model.weight, other.weight, rtol=1e-12, atol=1e-12)
    assert torch.equal(model.weight[[3, 5]], start[[3, 5]])


def test_adagrad_is_resumed_bit_for_bit():
    model, optimizer = make_adagrad(dtype=torch.float32)
    for step in range(3):
        update_adagrad(model, optimizer, step)
    other, resumed = make_adagrad(start=1.0, lr=1.0, weight_decay=0.5, dtype=torch.float32)
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()), optimizer.optimizer_config)
    for step in range(3, NUM_ADAGRAD_STEPS):
        update_adagrad(model, optimizer, step)
        update_adagrad(other, resumed, step)
    assert torch.equal(model.weight, other.weight) and optimizer.supports_flat_params


@pytest.mark.parametrize("name, flag", [("start", "initial-accumulator"), ("weight_decay", "weight-decay")])
def test_what_is_no_coefficient_of_adagrad_is_refused(name, flag):
    with pytest.raises(ValueError, match=f"--{flag} -1.0: give"):
        make_adagrad(**{name: -1.0})
