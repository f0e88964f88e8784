"""Columns of matrices keep their length."""

from types import SimpleNamespace

import pytest
import torch
from builders import build_tiny_lm
from fairseq.optim import FP16Optimizer
from torch import nn

from fairseq_plugins.optim.adaptive import DampedAdagrad
from fairseq_plugins.optim.column_norm import apply_column_norm, column_norm, constrain_columns, normalise_columns_
from fairseq_plugins.optim.nt_asgd import NTASGD, NTASGDConfig

LENGTH = 1.5


class Model(nn.Module):
    """Two matrices whose columns are held, and a vector that is free."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.encoding, self.decoding = (nn.Parameter(torch.randn(9, 4)) for _ in range(2))
        self.free = nn.Parameter(torch.randn(4))
        self.to(dtype)
        constrain_columns(self, [self.encoding, self.decoding], length=LENGTH, task=None)

    def loss(self):
        return ((self.decoding * self.free) @ self.encoding.t()).float().sub(1).square().sum()


def lengths(weight):
    return weight.detach().double().norm(dim=0)


def assert_held(*weights):
    for weight in weights:
        torch.testing.assert_close(lengths(weight), torch.full((4,), LENGTH).double(), rtol=1e-6, atol=0)


def make_optimizer(parameters):
    return DampedAdagrad(SimpleNamespace(lr=[0.05], initial_accumulator=0.1, weight_decay=0.0), parameters)


def make_16_bits(model):
    copies = FP16Optimizer.build_fp32_params(None, list(model.parameters()), flatten=False)
    config = SimpleNamespace(optimizer=None, common=SimpleNamespace(bf16=True, fp16_scale_window=1))
    return FP16Optimizer(config, list(model.parameters()), make_optimizer(copies), copies)


def update_constrained(model, optimizer):
    optimizer.zero_grad()
    optimizer.backward(model.loss())
    optimizer.step()
    apply_column_norm(optimizer)


def test_columns_start_at_the_length_and_keep_their_direction():
    weights = [torch.randn(7, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)]
    before = [weight.clone() for weight in weights]
    constrain_columns(nn.Module(), weights, length=2.5, task=None)
    for weight, old in zip(weights, before):
        torch.testing.assert_close(weight, 2.5 * old / (old**2).sum(0).sqrt(), rtol=1e-12, atol=0)


def test_the_matrices_of_a_language_model_are_constrained():
    for name, num_matrices in (("full", 2), ("tied", 1)):
        model = build_tiny_lm(name, column_norm=1.5)
        norms = {key: column_norm(weight) for key, weight in model.named_parameters()}
        held = [key for key, norm in norms.items() if norm is not None]
        assert held == ["decoder.embedding.weight", "decoder.output.projection.weight"][:num_matrices]
        assert all(norms[key] == 1.5 for key in held)


@pytest.mark.parametrize("largest", [1.0, 1000.0])
def test_lengths_are_exact_at_the_size_of_a_vocabulary(largest):
    weight = torch.randn(50_000, 4)
    weight[:50] *= largest
    normalise_columns_(weight, 3.0)
    assert (weight.double().norm(dim=0) / 3 - 1).abs().max() < 1e-6


def test_every_update_leaves_the_columns_as_long():
    model = Model()
    optimizer = make_optimizer(model.parameters())
    for _ in range(3):
        before = model.encoding.detach().clone()
        update_constrained(model, optimizer)
        assert_held(model.encoding, model.decoding)
        assert not torch.equal(model.encoding, before)
    assert (lengths(model.free.unsqueeze(1)) - LENGTH).abs().item() > 1e-3


def test_averaged_sgd_is_refused():
    config = NTASGDConfig(lr=[0.05], task="stateful_lm", lr_scheduler="fixed", fp16=False, bf16=False)
    with pytest.raises(ValueError, match="nt_asgd does not keep the columns .*: give --column-norm 0, or another"):
        NTASGD(config, Model().parameters())


def test_copies_in_32_bits_are_held_and_the_model_follows_them():
    model = Model(torch.bfloat16)
    optimizer = make_16_bits(model)
    for _ in range(3):
        update_constrained(model, optimizer)
        copies = optimizer.fp32_params[:2]
        assert all(one.dtype == torch.float32 for one in copies)
        assert_held(*copies)
        assert all(torch.equal(weight, one.bfloat16()) for weight, one in zip((model.encoding, model.decoding), copies))


def test_one_vector_of_all_weights_is_refused():
    model = Model(torch.bfloat16)
    optimizer = make_16_bits(model)
    optimizer.fp32_params = {0: torch.cat([one.detach().flatten() for one in optimizer.fp32_params])}
    with pytest.raises(ValueError, match="--column-norm .* add --fp16-no-flatten-grads"):
        apply_column_norm(optimizer)
