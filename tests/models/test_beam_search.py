"""fairseq's beam search over the encoder-decoders against all hypotheses written out."""

import itertools
import math

import pytest
import torch
from builders import build_tiny_encdec, build_tiny_transformer, make_dictionary
from decoder_contract import pad
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment

BOS, _, EOS, UNK = range(4)
LIVE = 6  # the four above and two words
MAX_WORDS = 3
# fairseq's beam is at most the vocabulary less one, so words that never win pad the vocabulary
V = 100
SOURCES = 12
CONTENTS = [words for n in range(1, MAX_WORDS + 1) for words in itertools.product([BOS, UNK, 4, 5], repeat=n)]


def build(output_layer, *, seed=0, **flags):
    """A model whose words above the sixth have no chance."""
    model = build_tiny_encdec(output_layer, source_size=SOURCES, vocab_size=V, seed=seed, **flags).eval()
    with torch.no_grad():
        model.decoder.output.projection.bias[LIVE:] = -math.inf
    return model


def build_transformer():
    """fairseq's own, of which the same words have no chance."""
    model = build_tiny_transformer("transformer", source_size=SOURCES, vocab_size=V, seed=0).eval()
    with torch.no_grad():
        # there is no bias: one feature is constant, and its column decides between the words
        model.decoder.layers[-1].final_layer_norm.weight[0] = 0
        model.decoder.layers[-1].final_layer_norm.bias[0] = 1
        model.decoder.output_projection.weight[LIVE:, 0] = -math.inf
    return model


SENTENCES = [torch.tensor([4, 7, 9, 5, EOS]), torch.tensor([8, EOS]), torch.tensor([11, 6, 10, EOS])]


def batch(sentences):
    tokens, lengths = pad(sentences, side="left")
    return {"net_input": {"src_tokens": tokens, "src_lengths": lengths}}


def generate(models, sentences, *, beam=V - 1, generator_class=SequenceGenerator, prefix=None, **options):
    generator = generator_class(models, make_dictionary(V), beam_size=beam, max_len_b=MAX_WORDS, **options)
    return generator.generate(models, batch(sentences), prefix_tokens=prefix)


@torch.no_grad()
def all_hypotheses(models, sentence):
    """Every sequence of up to three words with its mean log-probability, best first; models vote with probabilities."""
    hypotheses = []
    for num_words, group in itertools.groupby(CONTENTS, key=len):
        targets = torch.tensor([[*words, EOS] for words in group])
        previous = torch.cat([torch.full_like(targets[:, :1], EOS), targets[:, :-1]], dim=1)
        source = sentence.expand(len(targets), -1)
        lengths = torch.full((len(targets),), len(sentence))
        log_probs = [
            model.get_normalized_probs(model(source, lengths, previous), log_probs=True).double() for model in models
        ]
        mean = torch.stack(log_probs).exp().mean(0).log()
        scores = mean.gather(-1, targets.unsqueeze(-1)).squeeze(-1).sum(1) / (num_words + 1)
        hypotheses += zip(scores.tolist(), targets.tolist())
    return sorted(hypotheses, reverse=True)


def assert_same_hypotheses(found, expected):
    assert len(found) >= len(expected)
    for hypothesis, (score, _) in zip(found, expected):
        assert hypothesis["score"].item() == pytest.approx(score, abs=1e-5)
    assert {tuple(h["tokens"].tolist()) for h in found[: len(expected)]} == {tuple(t) for _, t in expected}
    assert found[0]["tokens"].tolist() == expected[0][1]


def assert_all_are_found(models):
    """By a wide beam, in their order."""
    for found, sentence in zip(generate(models, SENTENCES), SENTENCES, strict=True):
        expected = all_hypotheses(models, sentence)
        assert len(expected) == 4 + 16 + 64
        assert_same_hypotheses(found, expected)


@pytest.mark.parametrize(
    "name, flags",
    [("doc", {}), ("mos", {"input_feeding": "off"}), ("full", {"attention": "none", "input_feeding": "off"})],
)
def test_a_wide_beam_finds_all_hypotheses_in_their_order(name, flags):
    assert_all_are_found([build(name, **flags)])


def test_an_ensemble_with_fairseqs_transformer():
    models = [build("doc"), build_transformer()]
    for order in (models, models[::-1]):
        assert_all_are_found(order)


def test_a_prefix_is_kept():
    models, words = [build("full")], [4, 5, 5]
    generated = generate(models, SENTENCES, prefix=torch.tensor(words).unsqueeze(1))
    for found, sentence, word in zip(generated, SENTENCES, words, strict=True):
        expected = [(score, tokens) for score, tokens in all_hypotheses(models, sentence) if tokens[0] == word]
        assert_same_hypotheses(found, expected)


@torch.no_grad()
def test_hypotheses_come_with_their_attention():
    model = build("doc")
    source = batch(SENTENCES)["net_input"]
    for row, found in enumerate(generate([model], SENTENCES, beam=3)):
        for hypothesis in found:
            targets = hypothesis["tokens"]
            assert hypothesis["attention"].shape == (source["src_tokens"].size(1), len(targets))
            previous = torch.cat([torch.tensor([EOS]), targets[:-1]]).unsqueeze(0)
            _, extra = model(source["src_tokens"][row : row + 1], source["src_lengths"][row : row + 1], previous)
            torch.testing.assert_close(hypothesis["attention"].T, extra["attn"][0][0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_alignments_of_fairseqs_generator(kind):
    models = [build("doc")]
    found = generate(models, SENTENCES, beam=2, generator_class=SequenceGeneratorWithAlignment, print_alignment=kind)
    for hypotheses, sentence in zip(found, SENTENCES, strict=True):
        for hypothesis in hypotheses:
            weights = hypothesis["attention"].T[:, -len(sentence) :]
            num_words = len(hypothesis["tokens"]) - 1
            if kind == "soft":
                sums = [sum(map(float, step)) for step in hypothesis["alignment"]]
                assert sums == pytest.approx([1.0] * len(hypothesis["tokens"]), abs=1e-4)
                continue
            pairs = {int(target): int(position) for position, target in hypothesis["alignment"]}
            assert pairs == {t: int(weights[t, :-1].argmax()) for t in range(num_words)}
