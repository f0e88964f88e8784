"""Several checkpoints that predict together."""

import json
from pathlib import Path

import pytest
import torch
from fairseq.data import Dictionary, data_utils

from fairseq_plugins.cli.evaluate_lm import EvaluateLanguageModels
from fairseq_plugins.evaluation.checkpoints import load_language_models
from fairseq_plugins.evaluation.scoring import score_windows

OLDER = Path(__file__).parents[1] / "fixtures/older_checkpoints"
DATA = OLDER / "data/lm"
PATHS = [OLDER / f"{name}.pt" for name in ("lstm_lm_doc", "mmlstm_lm_mos")]


@pytest.fixture
def log_probs():
    """Of every token of the test text but the first, by each model alone, (2, n - 1)."""
    dictionary = Dictionary.load(str(DATA / "dict.txt"))
    lines = data_utils.load_indexed_dataset(str(DATA / "test"), dictionary)
    stream = torch.cat([lines[number] for number in range(len(lines))]).long()
    found = []
    for path in PATHS:
        models, _ = load_language_models([str(path)], str(DATA))
        found.append(-torch.cat([part.nll for part in score_windows([models[0].eval()], stream)], dim=1)[0])
    return torch.stack(found)


def evaluate(*paths, capsys):
    EvaluateLanguageModels().main([str(DATA), "--path", *map(str, paths), "--json", "--cpu"])
    return json.loads(capsys.readouterr().out)


def test_probabilities_are_averaged_token_by_token(log_probs, capsys):
    together = log_probs.exp().mean(dim=0).log()
    found = evaluate(*PATHS, capsys=capsys)
    assert found["num_tokens"] == together.numel()
    assert found["nll"] == pytest.approx(-together.mean().item(), rel=1e-9)
    for path, alone in zip(PATHS, log_probs):
        assert evaluate(path, capsys=capsys)["nll"] == pytest.approx(-alone.mean().item(), rel=1e-9)
        assert found["nll"] != pytest.approx(-alone.mean().item(), rel=1e-3)


@pytest.mark.parametrize("path, told", [(".", "is a directory: give a checkpoint"), ("", "the path is empty")])
def test_a_choice_is_written_beside_no_folder(path, told, capsys):
    with pytest.raises(SystemExit) as end:
        EvaluateLanguageModels().main([str(DATA), "--path", path, "--tune", "temperature=1", "--cpu"])
    assert end.value.code == 2 and told in capsys.readouterr().err
