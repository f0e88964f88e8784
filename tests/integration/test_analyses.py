"""The commands that look into language models: frequency bands, rank, masked layers, correlations."""

import json
import logging
import re

import pytest
from commands import ROOT, evaluate, run, train

from fairseq_plugins.cli.mask_layers import MaskLayers
from fairseq_plugins.evaluation.analyses import layers

OLDER = ROOT / "tests/fixtures/older_checkpoints"


@pytest.mark.slow
def test_a_model_against_itself_gains_nothing_at_any_frequency(trained, data, tmp_path):
    checkpoint, plot = trained / "checkpoint_best.pt", tmp_path / "bands.png"
    command = "fairseq_plugins.cli.compare_by_frequency", data, "--path", f"A={checkpoint}", f"B={checkpoint}"
    result = run(*command, "--plot", plot)
    assert result.returncode == 0, result.stderr[-3000:]
    rows = re.findall(r"^\| [\d,]+ .*\| +([\d,]+) \| +0.00 \| +0.00 \|$", result.stdout, re.M)
    found = json.loads(run(*command, "--json").stdout)
    assert {"date", "code", "machine"} < set(found) and "compare_by_frequency" in found["command"]
    bands = found["bands"]
    assert rows == [f"{band['num_tokens']:,}" for band in bands] and len(rows) > 2
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_rank_of_a_mixture_is_above_that_of_its_features(trained, data):
    command = "fairseq_plugins.cli.measure_rank", data, "--path", trained / "checkpoint_best.pt", "--json"
    result = run(*command, "--positions", 100)
    assert result.returncode == 0, result.stderr[-3000:]
    figures = json.loads(result.stdout)
    assert figures["positions"] == 100 and 0 < figures["rank"] <= 100
    assert json.loads(run(*command, "--threshold", 1e-6).stdout)["rank"] > 16 + 2


@pytest.mark.slow
def test_masked_layers_of_a_model_under_two_names_lose_the_same(trained, data, tmp_path):
    checkpoint, plot = trained / "checkpoint_best.pt", tmp_path / "masking.png"
    command = "fairseq_plugins.cli.mask_layers", data, "--path", f"A={checkpoint}", f"B={checkpoint}"
    flags = ["--probabilities", 0, 0.5, "--runs", 2, "--rows", 2, "--plot", plot]
    result = run(*command, *flags)
    assert result.returncode == 0, result.stderr[-3000:]
    found = json.loads(run(*command, *flags, "--json").stdout)
    assert {"date", "code", "machine"} < set(found) and "mask_layers" in found["command"]
    figures = found["curves"]
    assert len(figures) == 2 * 3 * 2 and {len(figure["perplexities"]) for figure in figures} == {1, 2}
    by_model = [[f["perplexities"] for f in figures if f["model"] == name] for name in "AB"]
    assert by_model[0] == by_model[1]
    plain = evaluate(data, "--path", checkpoint, "--rows", 2)["perplexity"]
    assert all(figure["perplexity"] == plain for figure in figures if figure["probability"] == 0)
    masked = [figure["perplexity"] for figure in figures if figure["probability"] == 0.5]
    assert plain not in masked  # which a model so young hardly notices
    assert result.stdout.count(f" {plain:.2f} |") == 6 and plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "flags, kind", [([], "element"), (["--mask", "element"], "element"), (["--mask", "locked"], "locked")]
)
def test_layers_are_masked_as_asked_for(flags, kind, monkeypatch, capsys, caplog):
    caplog.set_level(logging.WARNING)  # the command does so, too; here the level before is restored
    kinds = []
    monkeypatch.setattr(layers, "masked_perplexity", lambda model, tokens, mask, **_: kinds.append(mask.kind) or 2.0)
    model = ["--path", f"A={OLDER / 'lstm_lm_doc.pt'}", "--probabilities", "0.5", "--cpu", "--json"]
    MaskLayers().main([str(OLDER / "data/lm"), *model, *flags])
    curves = json.loads(capsys.readouterr().out)["curves"]
    assert set(kinds) == {kind} and [curve["mask"] for curve in curves] == [kind] * 3


@pytest.mark.slow
def test_correlations_are_shown_by_layer(trained, data):
    command = "fairseq_plugins.cli.measure_correlation", data, "--path", f"DOC={trained / 'checkpoint_best.pt'}"
    result = run(*command)
    assert result.returncode == 0, result.stderr[-3000:]
    found = json.loads(run(*command, "--json").stdout)
    assert {"date", "code", "machine"} < set(found) and "measure_correlation" in found["command"]
    figures = found["layers"]
    assert [(figure["layer"], figure["width"]) for figure in figures] == [(1, 16), (2, 16)]
    assert all(0 < figure["mean"] < 1 and figure["major"] is None for figure in figures)
    assert all(f" {figure['mean']:.4f} |" in result.stdout for figure in figures)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments, told",
    [
        (["no.pt"], "no.pt: give it as NAME=PATH"),
        (["A=no.pt"], "no.pt does not exist"),
        (["A=no.pt", "--probabilities", "50"], "--probabilities 50: give numbers from 0 to 1"),
        (["A=no.pt", "--runs", "0"], "--runs 0: give at least 1"),
        (["A=no.pt", "--rows", "0"], "--rows 0: give at least 1"),
        (["A=no.pt", "A=other.pt"], "give each NAME once"),
        (["=no.pt"], "=no.pt: give it as NAME=PATH"),
        (["A=no.pt", "--probabilities", "0", "0"], "--probabilities: give each number once"),
        (["A=no.pt", "--plot", "nowhere/masking.png"], "--plot: nowhere/masking.png: nowhere is no directory"),
        (["A=no.pt", "--plot", "masking.foo"], "--plot: masking.foo: give a name that ends in one of"),
    ],
)
def test_what_cannot_be_masked_is_one_line(arguments, told, data):
    result = run("fairseq_plugins.cli.mask_layers", data, "--path", *arguments)
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1 and told in result.stderr


def test_more_rows_than_tokens_are_one_line():
    given = OLDER / "data/lm", "--path", f"A={OLDER}/lstm_lm_doc.pt", "--rows", 90_000
    for command, flags in (("mask_layers", []), ("plot_experts", ["--out", "experts"])):
        result = run(f"fairseq_plugins.cli.{command}", *given, *flags)
        assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
        assert "--rows 90000: test has " in result.stderr and result.stderr.endswith(" tokens, give fewer\n")


@pytest.mark.slow
def test_models_of_different_depth_are_not_masked_together(trained, data, tmp_path):
    train(data, tmp_path, "--hidden-sizes", 16, "--output-layer", "full", "--balance", 0, "--max-update", 1)
    models = f"two={trained / 'checkpoint_best.pt'}", f"one={tmp_path / 'checkpoint_last.pt'}"
    result = run("fairseq_plugins.cli.mask_layers", data, "--path", *models)
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
    assert "models with 1 and 2 layers: compare those of one depth" in result.stderr


@pytest.mark.parametrize(
    "command, paths", [("compare_by_frequency", ["A=no.pt", "B=no.pt"]), ("measure_rank", ["no.pt"])]
)
def test_a_missing_checkpoint_is_one_line(command, paths, data):
    result = run(f"fairseq_plugins.cli.{command}", data, "--path", *paths)
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
    assert "no.pt does not exist: give a checkpoint" in result.stderr
