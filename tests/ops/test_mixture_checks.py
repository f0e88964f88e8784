"""Arguments that the loss of a mixture refuses."""

import pytest
import torch

from fairseq_plugins.ops.mixture_chunk import Interpolation
from fairseq_plugins.ops.mixture_loss import mixture_nll


def arguments(dtype=torch.float32, **changes):
    """Two rows of three tokens, four experts, width five, seven words."""
    given = dict(
        latents=torch.zeros(2, 3, 4, 5, dtype=dtype),
        log_prior=torch.zeros(2, 3, 4),
        weight=torch.zeros(7, 5, dtype=dtype),
        target=torch.zeros(2, 3, dtype=torch.long),
        bias=torch.zeros(7, dtype=dtype),
        token_weights=torch.ones(2, 3),
    )
    return {**given, **changes}


X, ONES = torch.zeros, torch.ones(2, 3)
REFUSED = {
    "latents": [
        dict(latents=X(5)),
        dict(latents=X(2, 3, 0, 5)),
        dict(latents=X(2, 3, 4, 0), weight=X(7, 0)),
        dict(latents=X(2, 3, 4, 5).long()),
    ],
    "weight": [
        dict(latents=X(2, 3, 4, 6)),
        *(dict(weight=x) for x in (X(5), X(1, 7, 5), X(7, 5).double(), X(7, 5).half())),
        dict(weight=X(0, 5), bias=None),
        dict(dtype=torch.bfloat16, weight=X(7, 5)),
    ],
    "log_prior": [
        *(dict(log_prior=x) for x in (X(2, 3, 5), X(6, 4), X(2, 3, 4).double())),
        dict(dtype=torch.bfloat16, log_prior=X(2, 3, 4).bfloat16()),
    ],
    "target": [dict(target=x) for x in (X(3, 2).long(), X(6).long(), X(2, 3).int(), X(2, 3))],
    "bias": [*(dict(bias=x) for x in (X(5), X(()), X(7).half())), dict(dtype=torch.bfloat16, bias=X(7))],
    "token_weights": [dict(token_weights=x) for x in (torch.ones(6), torch.ones(2, 1))],
    "log_weight": [dict(interpolation=Interpolation(X(6), ONES))],
    "log_other": [dict(interpolation=Interpolation(ONES, x)) for x in (X(3), ONES.double())],
    "label_smoothing": [dict(label_smoothing=x) for x in (-0.1, 1.0, float("nan"))],
    "adversarial_epsilon": [dict(adversarial_epsilon=x) for x in (-0.1, 1.0, float("nan"))],
    "chunk_size": [dict(chunk_size=x) for x in (0, -3)],
    "chunk_dtype": [dict(chunk_dtype=torch.float16)],
}


@pytest.mark.parametrize("name", [*REFUSED, "meta"])
def test_arguments_that_do_not_fit_are_named(name):
    for dtype in (torch.float32, torch.bfloat16):
        assert mixture_nll(**arguments(dtype)).loss.isfinite()
    if name == "meta":
        cases = [(key, {key: x.to("meta")}) for key, x in arguments().items() if key != "latents"]
    else:
        cases = [(name, changes) for changes in REFUSED[name]]
    for key, changes in cases:
        with pytest.raises(ValueError, match=f"^mixture_nll: {key} is .*{'on meta' if name == 'meta' else ''}"):
            mixture_nll(**arguments(**changes))


@pytest.mark.parametrize("value", [-1, 7, 10**12])
def test_a_target_that_is_no_word_is_refused_where_it_is_not_ignored(value):
    target = torch.tensor([[0, 6, 3], [1, value, 2]])
    for changes in ({}, dict(token_weights=None)):
        with pytest.raises(ValueError, match=rf"mixture_nll: target .*\[{value}\]"):
            mixture_nll(**arguments(target=target, **changes))
    loss, nll = mixture_nll(**arguments(target=target, token_weights=target.ne(value)))
    assert loss.isfinite() and nll[1, 1] == 0 and nll.count_nonzero() == 5


def test_token_weights_that_learn_are_refused():
    given = arguments(token_weights=torch.ones(2, 3, requires_grad=True))
    with pytest.raises(ValueError, match="mixture_nll: token_weights requires a gradient"):
        mixture_nll(**given)
    with torch.no_grad():
        mixture_nll(**given)
