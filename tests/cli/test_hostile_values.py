"""Values that commands refuse, and results that are no numbers, on a model of an earlier version."""

import json
from pathlib import Path

import pytest

from fairseq_plugins.cli.evaluate_lm import EvaluateLanguageModels
from fairseq_plugins.cli.measure_rank import MeasureRank
from fairseq_plugins.cli.rescore_nbest import RescoreNbest

FIXTURES = Path(__file__).parents[1] / "fixtures/older_checkpoints"
MODEL = [str(FIXTURES / "data/lm"), "--path", str(FIXTURES / "lstm_lm_doc.pt"), "--cpu"]


def test_an_infinite_perplexity_is_null_in_json(capsys):
    EvaluateLanguageModels().main([*MODEL, "--temperature", "1e-30", "--json"])
    figures = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert figures["perplexity"] is None and figures["nll"] > 1e20


def test_a_cache_needs_no_more_room_than_the_text(capsys):
    figures = []
    for window in (200, 10**13):
        flags = ["--cache", f"{window},0.1,1", "--cache-start", "first", "--unigram-cache", f"{window},0.1", "--json"]
        EvaluateLanguageModels().main([*MODEL, *flags])
        figures.append(json.loads(capsys.readouterr().out))
    assert figures[0]["nll"] == figures[1]["nll"]


def test_a_seed_that_no_search_has(tmp_path, capsys):
    with pytest.raises(SystemExit):
        RescoreNbest().main([*MODEL, "--tune", str(tmp_path / "weights.json"), "--seed", "-1"])
    assert capsys.readouterr().err.endswith("error: --seed -1: give 0 or more\n")


@pytest.mark.parametrize(
    "flags, told",
    [
        (["--threshold", "nan"], "--threshold nan: give 0 or more"),
        (["--threshold", "inf"], "--threshold inf: give a finite value"),
        (["--threshold", "-1"], "--threshold -1.0: give 0 or more"),
    ],
)
def test_a_threshold_that_no_rank_has(flags, told, capsys):
    with pytest.raises(SystemExit) as error:
        MeasureRank().main([*MODEL, *flags])
    assert error.value.code == 2
    assert capsys.readouterr().err == f"python -m fairseq_plugins.cli.measure_rank: error: {told}\n"
