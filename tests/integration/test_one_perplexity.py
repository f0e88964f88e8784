"""A text has one perplexity, by whatever way it is asked for."""

import io
import json
import math
import shutil
import sys

import fairseq_cli.eval_lm
import fairseq_cli.validate
import pytest
from binarised_lines import write_split
from commands import PLUGINS, ROOT
from commands import run as run_command
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.data import Dictionary
from short_trainings import FAMILIES

import fairseq_plugins
from fairseq_plugins.cli.score_text import ScoreText

OLDER = ROOT / "tests/fixtures/older_checkpoints"
OLDER_MODELS = ["lstm_lm_doc", "mmlstm_lm_mos"]
TRAINED = ["AWD-LSTM", "DRILL", "recurrent highway network", "FPNN", "Input-to-Output Gate"]
LINE = "the small dog finds a bone near the river"
HOST = ["--task", "stateful_lm", "--tokens-per-sample", 5]


@pytest.fixture
def one_line(tmp_path):
    """Data whose valid split is a line after an end mark, and so begins as a text on its own does."""
    folder = tmp_path / "data"
    folder.mkdir()
    shutil.copy(OLDER / "data/lm/dict.txt", folder)
    (folder / "text.json").write_text('{"tokenizer": "blanks", "case": "lower tokens"}\n')
    dictionary = Dictionary.load(str(folder / "dict.txt"))
    line = [dictionary.index(word) for word in LINE.split()]
    assert dictionary.unk() not in line
    write_split(folder, "valid", [[dictionary.eos()], [*line, dictionary.eos()]], vocab_size=len(dictionary))
    return folder


@pytest.fixture
def model(request, tmp_path):
    """A checkpoint that is kept, or one of a family of models two updates old."""
    if request.param in OLDER_MODELS:
        return OLDER / f"{request.param}.pt"
    flags = ["--max-update", 2, "--save-dir", tmp_path / "trained", "--user-dir", PLUGINS, "--num-workers", 0, "--cpu"]
    result = run_command("fairseq_cli.train", *FAMILIES[request.param], *flags)
    assert result.returncode == 0, result.stderr[-3000:]
    return tmp_path / "trained/checkpoint_last.pt"


def by_score_text(data, model, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{LINE}\n".encode())))
    ScoreText().main([str(data), "--path", str(model), "--json", "--cpu"])
    scored = json.loads(capsys.readouterr().out)
    return -scored["log_prob"] / len(scored["tokens"])


def by_eval_lm(data, model, monkeypatch, run_here):
    """The function's value, of which the command shows two digits."""
    found = []
    evaluate = fairseq_cli.eval_lm.eval_lm
    monkeypatch.setattr(fairseq_cli.eval_lm, "eval_lm", lambda **given: found.append(evaluate(**given)) or found[-1])
    run_here(fairseq_cli.eval_lm, data, "--path", model, "--gen-subset", "valid", *HOST)
    return found[0]["loss"] * math.log(2)


def by_validate(data, model, monkeypatch, run_here):
    """From what the criterion hands to the log, which shows two digits."""
    logged = []
    criterion = CRITERION_REGISTRY["regularized_cross_entropy"]
    forward = criterion.forward

    def recorded(self, *args, **given):
        result = forward(self, *args, **given)
        logged.append(result[2])
        return result

    monkeypatch.setattr(criterion, "forward", recorded)
    run_here(fairseq_cli.validate, data, "--path", model, "--valid-subset", "valid", "--batch-size", 1, *HOST)
    total = sum(float(one.get("nll_loss", one["loss"])) for one in logged)
    return total / sum(one["ntokens"] for one in logged)


@pytest.mark.parametrize("model", [*OLDER_MODELS, *TRAINED], indirect=True)
def test_every_way_gives_it(model, one_line, evaluate_here, run_here, monkeypatch, capsys):
    figures = evaluate_here(one_line, "--path", model, "--split", "valid")
    assert figures["num_tokens"] == len(LINE.split()) + 1
    loaded = fairseq_plugins.load(model, data=one_line)
    found = {
        "Python": math.log(loaded.perplexity(f"{LINE}\n")),
        "score_text": by_score_text(one_line, model, monkeypatch, capsys),
        "fairseq-eval-lm": by_eval_lm(one_line, model, monkeypatch, run_here),
        "fairseq-validate": by_validate(one_line, model, monkeypatch, run_here),
    }
    assert found == pytest.approx(dict.fromkeys(found, figures["nll"]), rel=1e-6)
