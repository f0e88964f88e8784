"""Features of candidates against each candidate scored alone."""

import numpy as np
import pytest
import torch
from host_models import build_host_lm

from fairseq_plugins.evaluation.rescoring.candidate_lists import Candidate, NBestLists
from fairseq_plugins.evaluation.rescoring.nbest_features import candidate_features

LISTS = NBestLists(
    candidates=[
        [Candidate("w0 w1 w2", -1.0), Candidate("w3", -2.0), Candidate("w0 w1 w2", -3.0)],
        [Candidate("w3 nowhere w5 w6 w7", -0.5)],
    ],
    sources=["w1 w2", "w3 w4 w5 w6"],
    references=[],
)


def nll_alone(model, text, source=None):
    dictionary = model.decoder.dictionary
    target = dictionary.encode_line(text, add_if_not_exist=False).long()
    inputs = torch.cat([torch.tensor([dictionary.eos()]), target[:-1]])[None]
    if source is not None:
        read = model.encoder.dictionary.encode_line(source, add_if_not_exist=False).long()[None]
        inputs = (read, torch.tensor([read.size(1)]), inputs)
    with torch.no_grad():
        log_probs = model.eval()(*(inputs if isinstance(inputs, tuple) else (inputs,)))[0][0]
    return -log_probs.gather(-1, target[:, None]).sum().item()


@pytest.mark.parametrize("max_tokens", [6, 4096])
def test_they_are_the_lists_scores_lengths_and_log_probabilities(max_tokens, build_tiny_lm, build_encdec):
    lm = build_tiny_lm("mos", dropout_output=0.5).double()
    encdec = build_encdec("lstm_encdec_doc", 19, 23, embed_dim=8, hidden_sizes="8 8").double()
    found = candidate_features(LISTS, {"lm": lm, "encdec": encdec}, max_tokens=max_tokens)
    assert found.names == ["list", "length", "lm", "encdec"]
    assert found.is_candidate.tolist() == [[True, True, True], [True, False, False]]
    for sentence, (row, candidates) in enumerate(zip(found.values, LISTS.candidates)):
        expected = [
            [
                candidate.score,
                len(candidate.text.split()),
                -nll_alone(lm, candidate.text),
                -nll_alone(encdec, candidate.text, LISTS.sources[sentence]),
            ]
            for candidate in candidates
        ]
        np.testing.assert_allclose(row[: len(candidates)], expected, rtol=1e-9)
        assert not row[len(candidates) :].any()


def test_candidates_without_a_word_have_no_unknown_ones(build_tiny_lm):
    lists = NBestLists([[Candidate("", -1.0)]], [], [])
    assert candidate_features(lists, {"lm": build_tiny_lm("tied")}).unknown_shares == {"lm": 0}


def test_what_is_missing_is_told(build_encdec):
    encdec = build_encdec("lstm_encdec", 19, 23, embed_dim=8, hidden_sizes="8 8")
    with pytest.raises(ValueError, match="an encoder-decoder reads the sources: give them with --source"):
        candidate_features(NBestLists(LISTS.candidates, [], []), {"encdec": encdec})
    with pytest.raises(ValueError, match="a Linear scores no text"):
        candidate_features(LISTS, {"other": torch.nn.Linear(1, 1)})


def test_a_text_that_a_model_cannot_read_is_named_before_another_model_scores(build_tiny_lm, build_encdec, monkeypatch):
    lm, host_lm = build_tiny_lm("tied"), build_host_lm("transformer_lm")
    monkeypatch.setattr(lm, "forward", lambda *_, **__: pytest.fail("the language model has scored"))
    encdec = build_encdec("lstm_encdec", 19, 23, embed_dim=8, hidden_sizes="8 8")
    monkeypatch.setattr(encdec, "max_positions", lambda: (5, 14))
    long = NBestLists([*LISTS.candidates, [Candidate("w1", -1.0), Candidate("w2 " * 14, -1.0)]], ["w1"] * 3, [])
    candidate = "sentence 2 of the lists, from 0: the candidate that begins with 'w2 w2 .*' has 15 tokens with the end"
    for last in (host_lm, encdec):
        with pytest.raises(
            ValueError, match=f"{candidate} mark, and last.pt reads at most 14: leave the candidate out"
        ):
            candidate_features(long, {"first.pt": lm, "last.pt": last})
    source = "sentence 1 of the lists, from 0: the source that begins with 'w3 w4 w5 w6 w7' has 6 tokens with the end"
    with pytest.raises(ValueError, match=f"{source} mark, and last.pt reads at most 5: shorten it or take another"):
        sources = [LISTS.sources[0], "w3 w4 w5 w6 w7"]
        candidate_features(NBestLists(LISTS.candidates, sources, []), {"first.pt": lm, "last.pt": encdec})


def test_what_is_missing_is_told_before_another_model_scores(build_tiny_lm, build_encdec, monkeypatch):
    lm, encdec = build_tiny_lm("tied"), build_encdec("lstm_encdec", 19, 23, embed_dim=8, hidden_sizes="8 8")
    monkeypatch.setattr(lm, "forward", lambda *_, **__: pytest.fail("the language model has scored"))
    for other, message in ((encdec, "last.pt: an encoder-decoder reads"), (torch.nn.Linear(1, 1), "last.pt: a Linear")):
        with pytest.raises(ValueError, match=message):
            candidate_features(NBestLists(LISTS.candidates, [], []), {"first.pt": lm, "last.pt": other})
