"""Texts scored by test-time methods as flags name them, and the pairs of the small models."""

import pytest
import torch
from binarised_data import copy_data
from builders import build_tiny_encdec, build_tiny_transformer, make_dictionary
from paths import SMALL_MODELS

from fairseq_plugins.commands.method_flags import read_methods
from fairseq_plugins.evaluation.evaluator import Evaluator
from fairseq_plugins.evaluation.methods import EvaluatedText, interpolate

V = 23


@pytest.fixture
def tokens():
    return torch.randint(V, (61,))


@pytest.fixture
def pair_data(tmp_path):
    return copy_data(SMALL_MODELS / "data/translation", tmp_path / "pairs", subwords=True)


@pytest.fixture
def score_text(tmp_path):
    """``score_text(models, tokens, num_rows=1, window=7, mean_squares=(), **flags)``: log-probabilities (B, n)."""

    def score(models, tokens, *, num_rows=1, window=7, mean_squares=(), **flags):
        passes, mixed = read_methods({name.replace("_", "-"): str(value) for name, value in flags.items()})
        text = EvaluatedText(tokens, dictionary=make_dictionary(V), num_rows=num_rows)
        evaluator = Evaluator(models, checkpoints=[], data=tmp_path, window=window)
        evaluator.statistics = lambda dynamic: mean_squares
        weights = list(mixed.values())
        windows = evaluator.score(text, passes, list(mixed))
        return torch.cat([interpolate(-one.nll, scores, weights) for one, scores in windows], dim=1)

    return score


@pytest.fixture(params=["recurrent", "transformer"])
def doc_translator(request):
    """An encoder-decoder with three experts on its last two layers, in float64."""
    if request.param == "recurrent":
        return build_tiny_encdec("doc", experts_per_layer="0 0 1 2").double()
    return build_tiny_transformer("transformer_doc", experts_per_layer="0 1 2", latent_activation="tanh").double()
