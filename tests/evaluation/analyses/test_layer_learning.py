"""What a mixture reads from each layer and teaches it."""

import pytest
import torch
from builders import build_tiny_encdec, build_tiny_lm, build_tiny_transformer
from torch.nn.functional import linear, log_softmax, softmax

from fairseq_plugins.evaluation.analyses.layer_learning import lines_learning, pairs_learning

END = 2


def learning_by_hand(model, states, target):
    """Shares by expert and norms by layer, summed over the words, with P = sum_j pi_j softmax(E k_j + b)."""
    output, width = model.decoder.output, model.decoder.output.latent_width
    shares, norms = torch.zeros(output.num_experts, dtype=torch.float64), torch.zeros(len(states.layers))
    for t, word in enumerate(target.tolist()):
        layers = [layer[0, t].detach().requires_grad_() for layer in states.layers]
        prior = softmax(linear(layers[-1], output.prior.weight), dim=-1)
        latents = []
        for n, matrix in zip(output.source_layers, output.latents):
            latents += list(torch.tanh(linear(layers[n], matrix.weight, matrix.bias)).split(width))
        logits = linear(torch.stack(latents), output.projection.weight, output.projection.bias)
        nll = -torch.log((prior * log_softmax(logits, dim=-1)[:, word].exp()).sum())
        gradients = torch.autograd.grad(nll, layers, allow_unused=True)
        norms += torch.tensor([0.0 if gradient is None else gradient.norm() for gradient in gradients])
        shares += prior.detach()
    return shares, norms


def test_a_language_model_by_lines():
    model = build_tiny_lm("doc", experts_per_layer="0 2 1", dropout_hidden=0.5, latent_dropout=0.5).double().train()
    lines = [torch.tensor([7, 11, 3, END]), torch.tensor([5, END])]
    found = lines_learning(model, lines)
    shares, norms = torch.zeros(3, dtype=torch.float64), torch.zeros(3)
    for line in lines:
        inputs = torch.cat([torch.tensor([END]), line[:-1]])
        more = learning_by_hand(model, model(inputs[None])[1]["states"], line)
        shares, norms = shares + more[0], norms + more[1]
    assert found.num_words == 6
    assert found.shares == pytest.approx([0, float(shares[:2].sum()) / 6, float(shares[2]) / 6])
    assert found.gradients == pytest.approx((norms / 6).tolist(), rel=1e-5)
    assert found.gradients[0] == 0 and found.gradients[1] > 0


@pytest.mark.parametrize(
    "build",
    [
        lambda: build_tiny_encdec("doc", experts_per_layer="0 0 1 2"),
        lambda: build_tiny_transformer("transformer_doc", experts_per_layer="0 1 2"),
    ],
    ids=["recurrent", "transformer"],
)
def test_an_encoder_decoder_by_pairs(build):
    model = build().double().eval()
    sources = [torch.tensor([5, 6, END]), torch.tensor([7, END])]
    targets = [torch.tensor([9, END]), torch.tensor([4, 5, 6, 7, END])]
    found = pairs_learning(model, sources, targets)
    shares, norms = torch.zeros(3, dtype=torch.float64), torch.zeros(len(found.gradients))
    for source, target in zip(sources, targets):
        inputs = torch.cat([torch.tensor([END]), target[:-1]])
        states = model(source[None], torch.tensor([len(source)]), inputs[None], target=target[None])[1]["states"]
        more = learning_by_hand(model, states, target)
        shares, norms = shares + more[0], norms + more[1]
    assert found.num_words == 7
    assert found.shares[-2:] == pytest.approx([float(shares[0]) / 7, float(shares[1:].sum()) / 7])
    assert found.gradients == pytest.approx((norms / 7).tolist(), rel=1e-5)


def test_what_has_no_mixture_is_told():
    with pytest.raises(ValueError, match="no mixture of softmaxes"):
        lines_learning(build_tiny_lm("tied"), [torch.tensor([7, END])])
    with pytest.raises(ValueError, match="no mixture of softmaxes"):
        pairs_learning(build_tiny_encdec("tied"), [torch.tensor([7, END])], [torch.tensor([7, END])])


def test_an_empty_text_is_told():
    with pytest.raises(ValueError, match="there is no sentence that has a word"):
        lines_learning(build_tiny_lm("doc"), [])
