"""The training loss against its formula in float64."""

import math

import numpy as np
import pytest
import torch
from builders import build_tiny_lm, make_dictionary, make_task
from fairseq.logging import metrics
from fairseq.models import FairseqLanguageModel
from fairseq.models.lstm import LSTMDecoder
from operations import TensorSizes
from single_experts import mean_log_probs

from fairseq_plugins.criterions.regularized_cross_entropy import RegularizedCrossEntropy

V, B, T = 23, 4, 6
COEFFICIENTS = dict(activation_regularization=2.0, temporal_activation_regularization=1.0, balance=0.5)


def make_criterion(**flags):
    return RegularizedCrossEntropy(make_task(V), **flags)


@pytest.fixture
def sample():
    return make_sample()


def make_sample(padding=None, num_steps=T):
    tokens = torch.randint(4, V, (B, num_steps + 1))
    target = tokens[:, 1:].clone()
    if padding is not None:
        target[2, -2:] = target[3, 1:] = padding
    num_tokens = B * num_steps if padding is None else int(target.ne(padding).sum())
    return {"net_input": {"src_tokens": tokens[:, :-1]}, "target": target, "ntokens": num_tokens}


def gradients(model, loss):
    return torch.autograd.grad(loss, list(model.parameters()))


def masked_alike(model, sample):
    """What a model says of a sample, with the same random masks whenever it is called."""
    torch.manual_seed(1)
    return model(**sample["net_input"])[1]


def by_hand(model, sample, *, padding, alpha=0.0, beta=0.0, balance=0.0, form="row", smoothing=0.0, l1=0.0, l2=0.0):
    """Mean NLL + alpha AR + beta TAR + lambda balance over the tokens that are no padding, + L1 + L2."""
    target, mask = sample["target"], sample["target"] != padding
    extra = masked_alike(model, sample)
    after, before, prior = extra["states"].layers[-1], extra["states"].top, extra["scores"].mixture_weights
    rows = [(b, t) for b in range(target.size(0)) for t in range(target.size(1)) if mask[b, t]]
    log_probs, mean = mean_log_probs(model.decoder.output, lambda: masked_alike(model, sample)["scores"])
    nll = torch.stack([-log_probs[b, t, target[b, t]] for b, t in rows])
    spread = torch.stack([-mean[b, t] for b, t in rows])
    total = ((1 - smoothing) * nll + smoothing * spread).mean()
    total = total + alpha * torch.cat([after[b, t] ** 2 for b, t in rows]).mean()
    total = total + beta * torch.cat([(before[b, t] - before[b, t - 1]) ** 2 for b, t in rows if t > 0]).mean()
    mass = torch.stack([sum(prior[b, t] for t in range(target.size(1)) if mask[b, t]) for b in range(len(target))])
    num_experts = mass.size(1)
    if form == "row":
        deviation = mass - mass.mean()
        penalty = (num_experts - 1) * (deviation**2).sum() / (mass.numel() - 1) / mass.mean() ** 2
    else:
        mass = mass.sum(0)
        penalty = ((mass - mass.mean()) ** 2).mean() / mass.mean() ** 2
    total = total + l1 * sum(parameter.abs().sum() for parameter in model.parameters() if parameter.dim() > 1)
    total = total + l2 * sum((parameter**2).sum() for parameter in model.parameters()) / 2
    return total + balance * penalty, nll.mean()


@pytest.mark.parametrize("form", ["row", "batch"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_gradient_per_token_is_that_of_the_formula(form, padded, smoothing):
    model = build_tiny_lm("doc", experts_per_layer="0 2 3", dropout_output=0.4, latent_dropout=0.3).double()
    criterion = make_criterion(balance_form=form, label_smoothing=smoothing, **COEFFICIENTS)
    sample = make_sample(criterion.padding_idx if padded else None)
    torch.manual_seed(1)
    loss, sample_size, logged = criterion(model, sample)
    torch.manual_seed(1)
    options = dict(alpha=2.0, beta=1.0, balance=0.5, form=form, smoothing=smoothing)
    expected, nll = by_hand(model, sample, padding=criterion.padding_idx, **options)
    assert sample_size == logged["sample_size"] == logged["ntokens"] == sample["ntokens"]
    assert (loss / sample_size).item() == pytest.approx(expected.item(), rel=1e-6)
    assert logged["loss"].item() / sample_size == pytest.approx(nll.item(), rel=1e-10)
    ours, theirs = gradients(model, loss / sample_size), gradients(model, expected)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


def test_with_sentence_avg_the_nll_of_a_sentence_takes_the_place_of_that_of_a_token():
    model, criterion = build_tiny_lm("mos").double(), make_criterion(sentence_avg=True, **COEFFICIENTS)
    sample = make_sample(criterion.padding_idx)
    loss, sample_size, logged = criterion(model, sample)
    options = dict(padding=criterion.padding_idx)
    regularised, nll = by_hand(model, sample, alpha=2.0, beta=1.0, balance=0.5, **options)
    expected = nll * sample["ntokens"] / B + (regularised - nll)
    assert sample_size == logged["sample_size"] == B and logged["ntokens"] == sample["ntokens"]
    assert (loss / sample_size).item() == pytest.approx(expected.item(), rel=1e-6)
    assert logged["loss"].item() / sample["ntokens"] == pytest.approx(nll.item(), rel=1e-10)
    by_token = make_criterion(**COEFFICIENTS)(model, sample)[2]
    for name in ("activation", "temporal_activation", "balance"):
        assert logged[name].item() == pytest.approx(by_token[name].item(), rel=1e-10)
    ours, theirs = gradients(model, loss / sample_size), gradients(model, expected)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "name, short",
    [*zip(COEFFICIENTS, ["alpha", "beta", "balance"]), ("l1_regularization", "l1"), ("l2_regularization", "l2")],
)
def test_each_penalty_has_its_own_coefficient(name, short, sample):
    model = build_tiny_lm("mos").double()
    criterion = make_criterion(**{name: 0.7})
    loss, sample_size, logged = criterion(model, sample)
    expected, nll = by_hand(model, sample, padding=criterion.padding_idx, **{short: 0.7})
    assert (loss / sample_size).item() == pytest.approx(expected.item(), rel=1e-6)
    logged_name = name.removesuffix("_regularization")
    assert set(logged) == {"loss", "ntokens", "nsentences", "sample_size", logged_name}
    assert not any(value.requires_grad for value in logged.values() if isinstance(value, torch.Tensor))
    assert logged[logged_name].item() / sample_size == pytest.approx((expected - nll).item() / 0.7, rel=1e-5)
    torch.testing.assert_close(gradients(model, loss / sample_size), gradients(model, expected), rtol=1e-5, atol=1e-7)


def test_weights_that_are_frozen_have_no_l1_and_no_l2(sample):
    model, criterion = build_tiny_lm("full").double(), make_criterion(l1_regularization=0.5, l2_regularization=0.5)
    model.decoder.embedding.requires_grad_(False)
    _, sample_size, logged = criterion(model, sample)
    expected = sum(weight.abs().sum() for weight in model.parameters() if weight.requires_grad and weight.dim() > 1)
    assert logged["l1"].item() / sample_size == pytest.approx(expected.item(), rel=1e-10)
    expected = sum((weight**2).sum() / 2 for weight in model.parameters() if weight.requires_grad)
    assert logged["l2"].item() / sample_size == pytest.approx(expected.item(), rel=1e-10)


@pytest.mark.parametrize("name", ["l1", "l2"])
def test_a_penalty_on_frozen_weights_alone_is_refused(name, sample):
    """Of the weights that learn, L1 takes matrices alone."""
    model = build_tiny_lm("full")
    for weight in model.parameters():
        weight.requires_grad_(name == "l1" and weight.dim() == 1)
    told = f"^--{name}-regularization: what it acts on is frozen and cannot learn; leave it out$"
    with pytest.raises(ValueError, match=told):
        make_criterion(**{f"{name}_regularization": 0.1})(model, sample)


def test_a_training_loss_without_gradients_is_no_sign_of_frozen_weights(sample):
    with torch.no_grad():
        _, _, logged = make_criterion(**COEFFICIENTS)(build_tiny_lm("mos"), sample)
    assert {"activation", "temporal_activation", "balance"} <= set(logged)


def test_evaluation_is_the_plain_nll_in_nats(sample):
    model = build_tiny_lm("mos", dropout_output=0.5).double().eval()
    criterion = make_criterion(label_smoothing=0.2, **COEFFICIENTS).eval()
    loss, sample_size, logged = criterion(model, sample)
    log_probs = model(**sample["net_input"])[0].detach().numpy()
    expected = -np.take_along_axis(log_probs, sample["target"].numpy()[..., None], -1).sum()
    assert loss.item() == logged["loss"].item() == pytest.approx(expected, rel=1e-12)
    assert set(logged) == {"loss", "ntokens", "nsentences", "sample_size"}


def test_without_reduction_each_position_has_its_nll():
    model, criterion = build_tiny_lm("tied").double().eval(), make_criterion().eval()
    sample = make_sample(criterion.padding_idx)
    nll, _, logged = criterion(model, sample, reduce=False)
    assert nll.shape == (B, T)
    assert torch.equal(nll[sample["target"].eq(criterion.padding_idx)].unique(), torch.zeros(1, dtype=torch.double))
    assert nll.sum().item() == pytest.approx(logged["loss"].item(), rel=1e-12)


@pytest.mark.parametrize("training", [True, False])
def test_log_probabilities_of_all_tokens_are_never_held(training):
    vocab_size, sample = 2003, make_sample(num_steps=50)
    criterion = make_criterion(label_smoothing=0.1).train(training)
    largest = []
    for flags in ({"output_chunk": 8}, {"output_loss": "plain"}):
        model = build_tiny_lm("doc", vocab_size=vocab_size, **flags).train(training)
        with TensorSizes() as sizes, torch.set_grad_enabled(training):
            loss, _, _ = criterion(model, sample)
            if training:
                loss.backward()
        largest.append(sizes.largest)
    assert largest[0] < sample["ntokens"] * vocab_size <= largest[1]


def test_metrics_are_means_per_token_and_perplexity_their_exponential():
    outputs = [
        {"loss": torch.tensor(30.0), "ntokens": 10, "sample_size": 10, "activation": torch.tensor(5.0)},
        {"loss": torch.tensor(90.0), "ntokens": 20, "sample_size": 20, "activation": torch.tensor(1.0)},
    ]
    with metrics.aggregate(new_root=True) as aggregated:
        RegularizedCrossEntropy.reduce_metrics(outputs)
    values = aggregated.get_smoothed_values()
    assert values["loss"] == pytest.approx(4.0)
    assert values["ppl"] == pytest.approx(math.exp(4.0), abs=0.005)
    assert values["activation"] == pytest.approx(0.2)
    assert "balance" not in values


def test_balance_needs_a_mixture(sample):
    with pytest.raises(ValueError, match="--balance.*--output-layer mos or doc"):
        make_criterion(balance=0.1)(build_tiny_lm("tied"), sample)


@pytest.mark.parametrize(
    "flags, told",
    [
        (dict(label_smoothing=-0.1), "--label-smoothing"),
        (dict(label_smoothing=1.0), "--label-smoothing"),
        (dict(activation_regularization=-1.0), "--activation-regularization"),
        (dict(temporal_activation_regularization=-1.0), "--temporal-activation-regularization"),
        (dict(balance=-0.1), "--balance"),
        (dict(balance=math.nan), "--balance"),
    ],
)
def test_values_that_cannot_be_are_refused_with_the_flag(flags, told):
    with pytest.raises(ValueError, match=told):
        make_criterion(**flags)


# models of fairseq


def test_a_model_of_fairseq_is_told_its_criterion(sample):
    decoder = LSTMDecoder(make_dictionary(V), embed_dim=8, hidden_size=8, out_embed_dim=8, attention=False)
    for model in (FairseqLanguageModel(decoder), torch.nn.Linear(1, 1)):
        with pytest.raises(ValueError, match="needs an --arch of fairseq_plugins: .* take --criterion cross_ent"):
            make_criterion()(model, sample)
