"""An n-gram model in ARPA's format mixed with a model of streams."""

import math

import pytest
import torch

UNIGRAMS = {"<unk>": 0.1, "</s>": 0.3, "w0": 0.4, "w1": 0.2}
AFTER_W0 = 0.75
"""Probability of w1 after w0."""


@pytest.fixture
def arpa(tmp_path):
    lines = ["\\data\\", "ngram 1=5", "ngram 2=1", "", "\\1-grams:", "-99\t<s>\t0"]
    backoff = math.log10((1 - AFTER_W0) / (1 - UNIGRAMS["w1"]))
    for word, prob in UNIGRAMS.items():
        lines.append(f"{math.log10(prob)}\t{word}\t{backoff if word == 'w0' else 0}")
    lines += ["", "\\2-grams:", f"{math.log10(AFTER_W0)}\tw0 w1", "", "\\end\\"]
    path = tmp_path / "model, of order 2.arpa"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("num_rows", [1, 2])
def test_its_probabilities_meet_the_targets_within_their_lines(
    num_rows, arpa, build_tiny_lm, make_dictionary, score_text
):
    dictionary = make_dictionary(23)
    words = "w0 w1 </s> w1 w0 </s> w1 w1 w0 w1 </s> w0".split()
    tokens = torch.tensor([dictionary.index(word) for word in words])
    probs = []
    for before, word in zip(words, words[1:]):
        prob = UNIGRAMS[word]
        if before == "w0":
            prob = AFTER_W0 if word == "w1" else prob * (1 - AFTER_W0) / (1 - UNIGRAMS["w1"])
        probs.append(prob)
    model = build_tiny_lm("tied").double()
    static = score_text([model], tokens, num_rows=num_rows)
    found = score_text([model], tokens, num_rows=num_rows, window=4, ngram=f"{arpa},0.3")
    known = torch.tensor([0.0, *probs], dtype=torch.float64).view(num_rows, -1)[:, 1:]
    torch.testing.assert_close(found, torch.log(0.7 * static.exp() + 0.3 * known), rtol=1e-5, atol=1e-5)
