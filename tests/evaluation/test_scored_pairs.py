"""Scores of sentence pairs against one pair at a time."""

import pytest
import torch
from builders import build_encdec, build_tiny_encdec, build_tiny_transformer

from fairseq_plugins.evaluation.scored_pairs import score_pairs

END = 2
LENGTHS = [(3, 5), (6, 1), (1, 9), (4, 4), (6, 2)]


def host_transformer():
    """A small model of the host, which reads 14 tokens at most."""
    sizes = dict(layers=1, embed_dim=8, ffn_embed_dim=8, attention_heads=2)
    flags = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sizes.items()}
    return build_encdec("transformer", 19, 23, max_source_positions=14, max_target_positions=14, **flags)


MODELS = {
    "recurrent": lambda: build_tiny_encdec("doc", dropout=0.5),
    "transformer": lambda: build_tiny_transformer("transformer_mos", dropout=0.5),
    "host": host_transformer,
}


@pytest.fixture
def pairs():
    sizes = (19, 23)
    return [
        [torch.cat([torch.randint(4, size, (pair[side] - 1,)), torch.tensor([END])]) for pair in LENGTHS]
        for side, size in enumerate(sizes)
    ]


@torch.no_grad()
def nll_alone(model, source, target):
    previous = torch.cat([torch.tensor([END]), target[:-1]])
    output = model.eval()(source[None], torch.tensor([len(source)]), previous[None])
    log_probs = model.get_normalized_probs(output, log_probs=True)[0]
    return -log_probs.gather(-1, target[:, None])[:, 0].double()


@pytest.mark.parametrize("max_tokens", [1, 9, 12, 4096])
@pytest.mark.parametrize("name", MODELS)
def test_they_are_those_of_each_pair_alone_whatever_the_batches(name, max_tokens, pairs):
    model, seen = MODELS[name]().double(), []
    for batch in score_pairs(model, *pairs, max_tokens=max_tokens):
        for number, nll, is_token in zip(batch.numbers, batch.nll, batch.is_token):
            torch.testing.assert_close(nll[is_token], nll_alone(model, *(side[number] for side in pairs)))
            assert not nll[~is_token].any() and int(is_token.sum()) == LENGTHS[number][1]
        assert (batch.scores is None) == (name == "host")
        seen += batch.numbers
        longest = max(max(LENGTHS[number]) for number in batch.numbers)
        assert longest * len(batch.numbers) <= max_tokens or len(batch.numbers) == 1
    assert sorted(seen) == list(range(len(LENGTHS)))


def test_a_pair_that_a_model_cannot_read_is_refused(pairs):
    targets = [*pairs[1][:-1], torch.full((15,), 5)]
    with pytest.raises(ValueError, match="the target of pair 5 has 15 tokens .* at most 14: leave the pair out"):
        list(score_pairs(host_transformer(), pairs[0], targets))
