"""Arguments that the mixture loss refuses: the message names them."""

import pytest
import torch

from fairseq_plugins.ops.interpolation import Interpolation
from fairseq_plugins.ops.mixture_nll import mixture_nll


def arguments(**changes):
    """Two rows of three tokens, four experts, width five, seven words."""
    given = dict(
        latents=torch.zeros(2, 3, 4, 5),
        log_prior=torch.zeros(2, 3, 4),
        weight=torch.zeros(7, 5),
        target=torch.zeros(2, 3, dtype=torch.long),
        bias=torch.zeros(7),
        token_weights=torch.ones(2, 3),
    )
    return {**given, **changes}


def half(**changes):
    return (
        arguments(latents=torch.zeros(2, 3, 4, 5).bfloat16(), weight=torch.zeros(7, 5).bfloat16(), bias=None) | changes
    )


def test_the_arguments_that_are_changed_below_are_taken():
    assert mixture_nll(**arguments()).loss.isfinite()
    assert mixture_nll(**half()).loss.isfinite()


@pytest.mark.parametrize(
    "changes, told",
    [
        (dict(latents=torch.zeros(5)), r"latents is \(5,\): it must be \(\*, experts, width\)"),
        (dict(latents=torch.zeros(2, 3, 0, 5)), "latents is"),
        (dict(latents=torch.zeros(2, 3, 4, 0), weight=torch.zeros(7, 0)), "latents is"),
        (dict(latents=torch.zeros(2, 3, 4, 6)), r"weight is \(7, 5\): it must be \(vocabulary, 6\)"),
        (dict(weight=torch.zeros(5, 7)), r"weight is \(5, 7\): it must be \(vocabulary, 5\)"),
        (dict(weight=torch.zeros(5)), "weight is"),
        (dict(weight=torch.zeros(1, 7, 5)), "weight is"),
        (dict(weight=torch.zeros(0, 5), bias=None), "weight is"),
        (dict(log_prior=torch.zeros(2, 3, 5)), r"log_prior is \(2, 3, 5\): it must be \(2, 3, 4\)"),
        (dict(log_prior=torch.zeros(6, 4)), "log_prior is"),
        (dict(log_prior=torch.zeros(4)), "log_prior is"),
        (dict(target=torch.zeros(3, 2, dtype=torch.long)), r"target is \(3, 2\): it must be \(2, 3\)"),
        (dict(target=torch.zeros(6, dtype=torch.long)), "target is"),
        (dict(target=torch.zeros(2, 3, 4, dtype=torch.long)), "target is"),
        (dict(bias=torch.zeros(5)), r"bias is \(5,\): it must be \(7,\)"),
        (dict(bias=torch.zeros(1, 7)), "bias is"),
        (dict(bias=torch.zeros(())), "bias is"),
        (dict(token_weights=torch.ones(6)), r"token_weights is \(6,\): it must be \(2, 3\)"),
        (dict(token_weights=torch.ones(2, 1)), "token_weights is"),
        (dict(token_weights=torch.ones(())), "token_weights is"),
        (
            dict(interpolation=Interpolation(torch.ones(6), torch.ones(2, 3))),
            r"log_weight is \(6,\): it must be \(2, 3\)",
        ),
        (dict(interpolation=Interpolation(torch.ones(2, 3), torch.ones(3))), "log_other is"),
    ],
)
def test_shapes_that_do_not_fit(changes, told):
    with pytest.raises(ValueError, match=f"mixture_nll: {told}"):
        mixture_nll(**arguments(**changes))


@pytest.mark.parametrize(
    "changes, told",
    [
        (dict(latents=torch.zeros(2, 3, 4, 5, dtype=torch.long)), "latents is torch.int64"),
        (dict(target=torch.zeros(2, 3, dtype=torch.int32)), "target is torch.int32: it must be torch.int64"),
        (dict(target=torch.zeros(2, 3)), "target is torch.float32"),
        (dict(weight=torch.zeros(7, 5).double()), "weight is torch.float64, latents torch.float32"),
        (dict(weight=torch.zeros(7, 5).bfloat16()), "weight is torch.bfloat16"),
        (dict(bias=torch.zeros(7).double()), "bias is torch.float64, latents torch.float32"),
        (dict(bias=torch.zeros(7).half()), "bias is torch.float16"),
        (dict(log_prior=torch.zeros(2, 3, 4).double()), "log_prior is torch.float64: it must be torch.float32"),
        (dict(log_prior=torch.zeros(2, 3, 4).bfloat16()), "log_prior is torch.bfloat16: it must be torch.float32"),
        (
            dict(interpolation=Interpolation(torch.ones(2, 3), torch.ones(2, 3).double())),
            "log_other is torch.float64: it must be torch.float32",
        ),
        (half(log_prior=torch.zeros(2, 3, 4).bfloat16()), "log_prior is torch.bfloat16: it must be torch.float32"),
        (half(weight=torch.zeros(7, 5)), "weight is torch.float32, latents torch.bfloat16"),
        (half(bias=torch.zeros(7)), "bias is torch.float32, latents torch.bfloat16"),
    ],
)
def test_types_that_do_not_fit(changes, told):
    with pytest.raises(ValueError, match=f"mixture_nll: {told}"):
        mixture_nll(**arguments(**changes))


@pytest.mark.parametrize("name", ["log_prior", "weight", "target", "bias", "token_weights"])
def test_an_argument_on_another_device(name):
    moved = {name: arguments()[name].to("meta")}
    with pytest.raises(ValueError, match=f"mixture_nll: {name} is on meta, latents on cpu"):
        mixture_nll(**arguments(**moved))


@pytest.mark.parametrize("value", [-1, -100, 7, 10**12])
def test_a_target_that_is_no_word(value):
    target = torch.tensor([[0, 6, 3], [1, value, 2]])
    for changes in (dict(target=target), dict(target=target, token_weights=None), dict(target=target, ignore_index=0)):
        with pytest.raises(ValueError, match=rf"mixture_nll: target .*0 \.\. 6.*{value}"):
            mixture_nll(**arguments(**changes))


@pytest.mark.parametrize("value", [-1, -100, 7, 10**12])
def test_what_is_no_word_may_stand_where_it_is_ignored(value):
    target = torch.tensor([[0, 6, 3], [1, value, 2]])
    for changes in (dict(ignore_index=value), dict(token_weights=target.ne(value))):
        loss, nll = mixture_nll(**arguments(target=target, **changes))
        assert loss.isfinite() and nll[1, 1] == 0 and nll.count_nonzero() == 5


@pytest.mark.parametrize(
    "changes, told",
    [
        (dict(label_smoothing=-0.1), "label_smoothing is -0.1"),
        (dict(label_smoothing=1.0), "label_smoothing is 1.0"),
        (dict(label_smoothing=1.5), "label_smoothing is 1.5"),
        (dict(label_smoothing=float("nan")), "label_smoothing is nan"),
        (dict(chunk_size=0), "chunk_size is 0: it must be a whole number of at least 1"),
        (dict(chunk_size=-3), "chunk_size is -3"),
        (dict(reduction="mean"), 'reduction is "mean": choose "sum" or "none"'),
        (dict(reduction=""), 'reduction is ""'),
    ],
)
def test_values_that_cannot_be(changes, told):
    with pytest.raises(ValueError, match=f"mixture_nll: {told}"):
        mixture_nll(**arguments(**changes))


def test_options_are_named():
    given = arguments()
    with pytest.raises(TypeError, match="positional"):
        mixture_nll(*(given[name] for name in ("latents", "log_prior", "weight", "target", "bias")))


def test_token_weights_that_learn_are_refused():
    given = arguments()
    weights = torch.ones_like(given["target"], dtype=torch.float32).requires_grad_()
    with pytest.raises(ValueError, match="mixture_nll: token_weights requires a gradient"):
        mixture_nll(**{**given, "token_weights": weights})
    with torch.no_grad():
        mixture_nll(**{**given, "token_weights": weights})


def test_a_word_that_is_not_in_the_vocabulary_is_told_with_the_remedy():
    given = arguments()
    with pytest.raises(ValueError, match=r"words outside 0 .. \d+: \[-100.*\]; mark padding by ignore_index"):
        mixture_nll(**{**given, "target": given["target"].index_fill(0, torch.tensor([0]), -100)})
