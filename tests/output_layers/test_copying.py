"""Copying of source words, above any output layer.

Shapes: B sentences, S source positions, T target steps, V target words.
"""

import math
from argparse import Namespace

import pytest
import torch
from builders import build_encdec, build_output_layer, build_tiny_encdec, dictionary_of

from fairseq_plugins.output_layers.base import OUTPUT_LAYERS
from fairseq_plugins.output_layers.copying import build_copying
from fairseq_plugins.output_layers.scores import DecoderStates, Noise, Scores

B, T, S, WIDTHS = 2, 3, 5, [8, 8]
EXPERTS = {"mos": "0 2", "doc": "1 2"}


SOURCE, TARGET = dictionary_of("d c x a".split()), dictionary_of("a b c d e".split())
V, UNK = len(TARGET), TARGET.unk()
SENTENCES = [["<pad>", "d", "x", "d", "</s>"], ["c", "x", "unknown", "a", "</s>"]]


@pytest.fixture
def states():
    """Two sentences, the first with padding and a word twice; both with the word x, which the target has not."""
    source = torch.tensor([[SOURCE.index(word) for word in sentence] for sentence in SENTENCES])
    scores = torch.randn(B, T, S).double().masked_fill(source.eq(SOURCE.pad()).unsqueeze(1), -math.inf)
    layers = [torch.randn(B, T, width).double() for width in WIDTHS]
    tokens = torch.randint(V, (B, T))
    return DecoderStates(
        layers=layers, top=layers[-1], tokens=tokens, attention=torch.softmax(scores, dim=-1), source=source
    )


def copying_of(source, target, *, width):
    args = Namespace(copying="attention")
    return build_copying(args, source=source, target=target, width=width, attention_removed_by=None)


def build(name, **flags):
    if name in EXPERTS:
        flags.update(experts_per_layer=EXPERTS[name], latent_dropout=0.0)
    layer = build_output_layer(name, widths=WIDTHS, vocab_size=V, **flags).double()
    layer.copying = copying_of(SOURCE, TARGET, width=WIDTHS[-1]).double()
    return layer.eval()


def expected_probs(layer, states):
    """(1 - g) P + g times the attention that each word gets, token by token."""
    probs = layer.log_probs(states).log_probs.exp()
    share = torch.sigmoid(layer.copying.copy_gate(states.layers[-1]))
    copied = torch.zeros_like(probs)
    for b, sentence in enumerate(SENTENCES):
        for i, word in enumerate(sentence):
            copied[b, :, TARGET.index(word)] += states.attention[b, :, i]
    return (1 - share) * probs + share * copied


def test_under_autocast_attention_is_summed_as_it_is(states):
    copying = copying_of(SOURCE, TARGET, width=WIDTHS[-1])
    states = DecoderStates(
        layers=[one.float() for one in states.layers],
        top=states.top.float(),
        tokens=states.tokens,
        attention=states.attention.float(),
        source=states.source,
    )
    scores, found = Scores(log_probs=torch.log_softmax(torch.randn(B, T, V), dim=-1)), []
    for with_gradients in (True, False):
        with torch.set_grad_enabled(with_gradients), torch.autocast("cpu", torch.bfloat16):
            found.append(copying.blended(scores, states).log_probs.detach())
    torch.testing.assert_close(*found, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", sorted(OUTPUT_LAYERS))
@pytest.mark.parametrize("output_loss", ["fused", "plain"])
@pytest.mark.parametrize("training", [True, False])
def test_distribution_loss_and_gradients_are_those_of_the_paper(name, output_loss, training, states):
    layer, weights = build(name, output_loss=output_loss).train(training), torch.rand(B, T).double()
    target = torch.tensor([[TARGET.index("d"), UNK, TARGET.index("b")], [TARGET.index("a"), TARGET.eos(), UNK]])
    scores_of_attention = states.attention.log().requires_grad_()
    states.attention = torch.softmax(scores_of_attention, dim=-1)
    probs, log_probs = expected_probs(layer, states), layer(states).log_probs
    with torch.no_grad():
        scored = layer(states).log_probs
    torch.testing.assert_close((log_probs.exp(), scored.exp()), (probs, probs.detach()), rtol=1e-9, atol=1e-12)
    nll, by_distribution = (-x.gather(-1, target.unsqueeze(-1)).squeeze(-1) for x in (probs.log(), log_probs))
    scores = layer(states, target, token_weights=weights)
    torch.testing.assert_close(scores.nll, nll.detach(), rtol=1e-9, atol=1e-12)
    losses = [scores.loss, (weights * by_distribution).sum(), (weights * nll).sum()]
    learned = [scores_of_attention, *layer.parameters()]
    *gradients, expected = [torch.autograd.grad(loss, learned, retain_graph=True) for loss in losses]
    torch.testing.assert_close(gradients, [expected] * 2, rtol=1e-8, atol=1e-11)


def test_a_word_that_nothing_looks_at_and_no_word_at_all_have_finite_gradients(states):
    layer = build("full")
    states.attention = torch.nn.functional.one_hot(torch.full((B, T), 4), S).double().requires_grad_()
    for loss in (layer(states).log_probs.sum(), layer(states, torch.full((B, T), TARGET.index("b"))).loss):
        gradients = torch.autograd.grad(loss, [states.attention, *layer.parameters()])
        assert all(gradient.isfinite().all() for gradient in gradients)


def test_attention_that_was_rounded_counts_as_a_whole(states):
    layer, rounded = build("full"), states.attention.bfloat16()
    assert (rounded.double().sum(-1) - 1).abs().max() > 1e-4
    states.attention = rounded.double() / rounded.double().sum(-1, keepdim=True)
    expected = layer(states).log_probs
    states.attention = rounded
    torch.testing.assert_close(layer(states).log_probs, expected, rtol=1e-5, atol=1e-5)


def test_gradients_by_attention_in_float16_are_refused_and_scores_are_not(states):
    layer, target = build("full"), torch.zeros(B, T).long()
    states.attention = states.attention.half()
    assert layer(states, target).nll.isfinite().all()
    states.attention.requires_grad_()
    with pytest.raises(
        ValueError, match="^--copying attention: gradients of a Transformer's attention overflow in --f"
    ):
        layer(states, target)


def test_noise_is_refused(states):
    with pytest.raises(ValueError, match="^--criterion noise_contrastive has no copying: leave --copying attention ou"):
        noise = Noise(torch.tensor([4]), torch.zeros(1), torch.zeros(B, T), "dense")
        build("full")(states, torch.zeros(B, T).long(), noise=noise)


# in models


@pytest.mark.parametrize(
    "arch, flags, message",
    [
        ("lstm_encdec", {"attention": "none", "input_feeding": "off"}, "--attention none"),
        ("transformer_full", {"no_cross_attention": True}, "--no-cross-attention"),
        ("transformer_full", {"decoder_layerdrop": 0.1}, "--decoder-layerdrop 0.1"),
    ],
)
def test_without_attention_it_is_refused(arch, flags, message):
    with pytest.raises(ValueError, match=f"^--copying attention needs attention to the source: leave out {message}$"):
        build_encdec(arch, 9, 9, copying="attention", **flags)


def test_half_a_recurrent_model_has_the_gradients_of_the_whole():
    model = build_tiny_encdec("full", copying="attention", source_size=9)
    source, tokens, target = torch.randint(4, 9, (2, 6)), torch.randint(4, 11, (2, 5)), torch.randint(4, 9, (2, 5))
    gradients = []
    for _ in range(2):
        loss, extra = model(source, torch.tensor([6, 6]), tokens, target=target)
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
        assert extra["attn"][0].dtype == torch.float32
        model.bfloat16()
    whole, half = (torch.cat([x.flatten().float() for x in some]) for some in gradients)
    assert (half - whole).norm() < 0.05 * whole.norm()
