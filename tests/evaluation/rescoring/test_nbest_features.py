"""Features of candidates against each candidate scored alone."""

import numpy as np
import pytest
import torch

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


def test_what_is_missing_is_told(build_tiny_lm, build_encdec):
    encdec = build_encdec("lstm_encdec", 19, 23, embed_dim=8, hidden_sizes="8 8")
    with pytest.raises(ValueError, match="an encoder-decoder reads the sources: give them with --source"):
        candidate_features(NBestLists(LISTS.candidates, [], []), {"encdec": encdec})
    with pytest.raises(ValueError, match="a Linear scores no text"):
        candidate_features(LISTS, {"other": torch.nn.Linear(1, 1)})


def test_what_is_missing_is_told_before_another_model_scores(build_tiny_lm, build_encdec, monkeypatch):
    lm, encdec = build_tiny_lm("tied"), build_encdec("lstm_encdec", 19, 23, embed_dim=8, hidden_sizes="8 8")
    monkeypatch.setattr(lm, "forward", lambda *_, **__: pytest.fail("the language model has scored"))
    for other, message in ((encdec, "last.pt: an encoder-decoder reads"), (torch.nn.Linear(1, 1), "last.pt: a Linear")):
        with pytest.raises(ValueError, match=message):
            candidate_features(NBestLists(LISTS.candidates, [], []), {"first.pt": lm, "last.pt": other})
