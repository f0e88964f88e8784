"""The contract of every decoder, below any output layer. models/test_decoder_contract.py names the tested decoders."""

from dataclasses import dataclass
from typing import Callable, Optional, Sequence

import pytest
import torch
from single_experts import mean_log_probs, output_layer
from torch import Tensor, nn

PAD = 1
SOURCES, V, T = 19, 23, 6
LENGTHS = [7, 1, 4, 6]
B = len(LENGTHS)


def pad(sentences: Sequence[Tensor], *, side: str, extra: int = 0):
    """Sentences in one batch, as fairseq pads them, and their lengths."""
    lengths = torch.tensor([len(sentence) for sentence in sentences])
    source = torch.full((len(sentences), int(lengths.max()) + extra), PAD)
    for row, sentence in zip(source, sentences):
        row[len(row) - len(sentence) if side == "left" else 0 :][: len(sentence)] = sentence
    return source, lengths


@dataclass
class Decoding:
    """A model that continues rows of target tokens.

    Attributes:
        model: as fairseq builds it.
        sentences: source sentences, one a row; none where the model reads no source.
        num_layers: of its decoder's states, the embedding included.
    """

    model: nn.Module
    sentences: Sequence[Tensor]
    num_layers: int
    side: str = "left"
    extra: int = 0

    @property
    def source(self):
        """The source sentences in one batch and their lengths."""
        return pad(self.sentences, side=self.side, extra=self.extra) if self.sentences else ()

    def __call__(self, tokens: Tensor, *, rows: Optional[Tensor] = None, **options):
        """Output for tokens (B, T), each row with its own source, or with those of other ``rows``."""
        source = self.source if rows is None else [part[rows] for part in self.source]
        return self.model(*source, tokens, **options)

    def start(self) -> "Hypotheses":
        """Decoding step by step, of every row."""
        encoder_out = None
        if self.sentences:
            source, lengths = self.source
            encoder_out = self.model.encoder(source, src_lengths=lengths)
        return Hypotheses(self.model, encoder_out)


class Hypotheses:
    """The state that a beam search keeps for a model."""

    def __init__(self, model: nn.Module, encoder_out):
        self.model = model
        self.encoder_out = encoder_out
        self.incremental_state = {}

    def step(self, tokens: Tensor, **options):
        """Output of the last of tokens (B, t), as a beam search asks."""
        shared = dict(encoder_out=self.encoder_out, incremental_state=self.incremental_state)
        return self.model.decoder(tokens, **shared, **options)

    def reorder(self, order: Tensor) -> None:
        """Go on with rows ``order``, as a beam search does."""
        self.model.decoder.reorder_incremental_state_scripting(self.incremental_state, order)
        if self.encoder_out is not None:
            self.encoder_out = self.model.encoder.reorder_encoder_out(self.encoder_out, order)


def parts(output):
    """Log-probabilities, attention and mixture weights of an output, (B, T, *) each, where there are any."""
    log_probs, extra = output
    return [x for x in (log_probs, extra["attn"][0], extra["scores"].mixture_weights) if x is not None]


def learning(model: nn.Module):
    """The parameters that are not frozen, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


class DecoderContract:
    """Tests of a decoder; a subclass gives the fixture ``build``: ``build(**flags)`` returns a :class:`Decoding`.

    Without flags it has no dropout. All weights are well away from zero.
    """

    dropouts = {"dropout": 0.5}
    """Flags under which training is random."""

    @pytest.fixture
    def build(self) -> Callable[..., Decoding]:
        raise NotImplementedError

    @pytest.fixture
    def sentences(self):
        return [torch.randint(4, SOURCES, (length,)) for length in LENGTHS]

    @pytest.fixture
    def tokens(self):
        return torch.randint(4, V, (B, T))

    # a distribution or a loss

    def test_the_output_is_the_distribution_or_the_loss_of_targets(self, build, tokens):
        decoding, target = build(), torch.randint(V, (B, T))
        log_probs, extra = decoding(tokens)
        scores, states = extra["scores"], extra["states"]
        assert scores.log_probs is log_probs is scores.output and scores.loss is None and scores.nll is None
        assert log_probs.shape == (B, T, V) and log_probs.dtype == torch.float32
        torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(B, T), rtol=0, atol=1e-5)
        for logarithms in (True, False):
            found = decoding.model.get_normalized_probs((log_probs, extra), log_probs=logarithms)
            torch.testing.assert_close(found, log_probs if logarithms else log_probs.exp(), rtol=1e-5, atol=1e-6)
        assert len(states.layers) == decoding.num_layers
        assert all(layer.shape[:2] == (B, T) for layer in states.layers)
        assert torch.equal(states.tokens, tokens) and torch.equal(states.top, states.layers[-1])
        assert states.attention is extra["attn"][0]

        loss, with_target = decoding(tokens, target=target)
        scores, nll = with_target["scores"], -log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1).detach()
        assert scores.output is scores.loss is loss and scores.log_probs is None
        torch.testing.assert_close(scores.nll, nll, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(loss.detach(), nll.sum(), rtol=1e-5, atol=1e-5)
        assert loss.requires_grad and not scores.nll.requires_grad
        weights = [part["scores"].mixture_weights for part in (extra, with_target)]
        if weights[0] is None:
            assert weights[1] is None
            return
        torch.testing.assert_close(*weights, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(weights[0].sum(-1), torch.ones(B, T), rtol=0, atol=1e-5)

    def log_probs_and_mean(self, decoding, tokens):
        """log P, (B, T, V), and what label smoothing raises, (B, T)."""
        return mean_log_probs(output_layer(decoding.model), lambda: decoding(tokens)[1]["scores"])

    def test_token_weights_and_label_smoothing_reach_the_output_layer(self, build, tokens):
        decoding, target, weights = build(), torch.randint(V, (B, T)), torch.rand(B, T).double()
        decoding.model.double()
        weights[1] = 0
        log_probs, mean = self.log_probs_and_mean(decoding, tokens)
        nll = -log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        expected = ((0.8 * nll - 0.2 * mean) * weights).sum()
        loss, extra = decoding(tokens, target=target, token_weights=weights, label_smoothing=0.2)
        torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)
        assert torch.equal(extra["scores"].nll != 0, weights != 0)

    def test_tokens_without_weight_have_no_gradient(self, build, tokens):
        decoding, target = build(), torch.randint(V, (B, T))
        parameters, gradients = list(learning(decoding.model).values()), []
        mask = torch.arange(T) < torch.tensor([[T], [2], [0], [4]])
        for garbage in (0, PAD):
            padded = target.masked_fill(~mask, garbage)
            loss, _ = decoding(tokens.masked_fill(~mask, 4 + garbage), target=padded, token_weights=mask)
            gradients.append(torch.autograd.grad(loss, parameters))
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)

    def test_every_parameter_gets_a_gradient_in_evaluation_the_same_one(self, build, tokens):
        decoding, target, gradients = build(), torch.randint(V, (B, T)), []
        parameters = learning(decoding.model)
        for training in (True, False):
            decoding.model.train(training)
            gradients.append(torch.autograd.grad(decoding(tokens, target=target)[0], list(parameters.values())))
        assert [name for name, gradient in zip(parameters, gradients[0]) if not gradient.abs().sum() > 0] == []
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)

    def test_what_comes_later_is_not_seen(self, build, tokens):
        decoding, changed = build(), tokens.clone()
        changed[:, 4:] = 4 + (changed[:, 4:] - 3) % (V - 4)
        first, second = (decoding(given)[0] for given in (tokens, changed))
        torch.testing.assert_close(first[:, :4], second[:, :4], rtol=1e-5, atol=1e-5)
        assert (first[:, 4] != second[:, 4]).any(-1).all()

    @torch.no_grad()
    def test_neighbours_and_padding_do_not_change_a_row(self, build, tokens):
        decoding = build()
        decoding.model.double()
        together = decoding(tokens)[0]
        for row, length in enumerate(range(T, T - B, -1)):
            alone = decoding(tokens[row : row + 1, :length], rows=torch.tensor([row]))[0]
            torch.testing.assert_close(alone[0], together[row, :length], rtol=1e-9, atol=1e-9)
            padded = tokens.clone()
            padded[row, length:] = PAD
            torch.testing.assert_close(decoding(padded)[0][row, :length], alone[0], rtol=1e-9, atol=1e-9)

    # decoding

    @torch.no_grad()
    def test_targets_can_be_scored_step_by_step(self, build, tokens):
        decoding, target = build(), torch.randint(V, (B, T))
        decoding.model.eval()
        nll, hypotheses = decoding(tokens, target=target)[1]["scores"].nll, decoding.start()
        for t in range(T):
            _, extra = hypotheses.step(tokens[:, : t + 1], target=target[:, t : t + 1])
            torch.testing.assert_close(extra["scores"].nll[:, 0], nll[:, t], rtol=1e-5, atol=1e-5)

    orders = [[0, 0, 1, 1, 2, 3], [5, 2, 0, 0], [1, 3, 0, 2], [0, 1, 2], [2, 1, 1, 0], [3]]
    """Rows that a beam search goes on with before each step."""

    @torch.no_grad()
    def test_steps_are_the_full_forward_and_rows_can_be_reordered_before_each(self, build, tokens):
        decoding = build(**self.dropouts)
        decoding.model.eval()
        hypotheses, rows = decoding.start(), torch.arange(B)
        for t, order in enumerate(self.orders):
            hypotheses.reorder(torch.tensor(order))
            rows = rows[order]
            step, full = parts(hypotheses.step(tokens[rows, : t + 1])), parts(decoding(tokens[rows], rows=rows))
            assert step[0].shape == (len(order), 1, V)
            torch.testing.assert_close([x[:, 0] for x in step], [x[:, t] for x in full], rtol=1e-5, atol=1e-5)

    @torch.no_grad()
    def test_two_decodings_do_not_know_of_each_other(self, build, tokens):
        decoding, backwards = build(), torch.arange(B).flip(0)
        decoding.model.eval()
        full, first, second = parts(decoding(tokens)), decoding.start(), decoding.start()
        second.reorder(backwards)
        for t in range(3):
            for hypotheses, rows in ((first, torch.arange(B)), (second, backwards)):
                found = parts(hypotheses.step(tokens[rows, : t + 1]))
                expected = [x[rows, t] for x in full]
                torch.testing.assert_close([x[:, 0] for x in found], expected, rtol=1e-5, atol=1e-5)

    # checkpoints

    def test_a_state_dict_goes_round(self, build, tokens):
        decoding, other = build(seed=1), build(seed=2)
        for model in (decoding.model, other.model):
            model.eval()
        assert not torch.equal(other(tokens)[0], decoding(tokens)[0])
        other.model.load_state_dict(decoding.model.state_dict())
        assert torch.equal(other(tokens)[0], decoding(tokens)[0])


class TranslatorContract(DecoderContract):
    """Tests of a decoder that reads a source as well."""

    def test_padding_never_changes_a_sentence(self, build, sentences, tokens):
        decoding = build()
        alone = [
            decoding.model(sentence.unsqueeze(0), torch.tensor([len(sentence)]), tokens[b : b + 1])[0]
            for b, sentence in enumerate(sentences)
        ]
        for decoding.side, decoding.extra in (("left", 0), ("right", 0), ("left", 3), ("right", 3)):
            log_probs, extra = decoding(tokens)
            torch.testing.assert_close(log_probs, torch.cat(alone), rtol=1e-5, atol=1e-5)
            weights = extra["attn"][0]
            if weights is not None:
                assert weights.shape == (B, T, decoding.source[0].size(1))
                torch.testing.assert_close(weights.sum(-1), torch.ones(B, T), rtol=0, atol=1e-6)
                padding = decoding.source[0].eq(PAD).unsqueeze(1).expand_as(weights)
                assert not weights[padding].any() and (weights[~padding] > 0).all()
