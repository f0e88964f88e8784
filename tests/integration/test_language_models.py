"""The commands of a language model's life: train, validate, evaluate, score, fine-tune."""

import json
import logging
import math
import re
import shutil
import subprocess

import fairseq_cli.eval_lm
import fairseq_cli.train
import pytest
import torch
from commands import ENVIRONMENT, MODEL_FLAGS, PLUGINS, ROOT, load, run, train

from fairseq_plugins.cli.mask_layers import MaskLayers
from fairseq_plugins.evaluation.analyses import layer_masking
from fairseq_plugins.models.presets import LANGUAGE_MODELS
from fairseq_plugins.output_layers import output_precision
from fairseq_plugins.recipes import find_recipe, training_arguments

PUBLISHED = ("_ptb", "_wt2", "_wt103", "_text8_words", "_text8_chars")
OLDER = ROOT / "tests/fixtures/older_checkpoints"
SMALL = [name for name in LANGUAGE_MODELS if not name.endswith(PUBLISHED)]


def evaluate(data, *args):
    result = run("fairseq_plugins.cli.evaluate_lm", data, "--json", *args)
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout)


def last_logged_ppl(log, subset="valid"):
    return float(re.findall(rf"valid on '{subset}' subset \| loss [\d.]+ \| ppl ([\d.]+)", log)[-1])


def test_evaluation_equals_what_training_logged(trained, data):
    figures = evaluate(data, "--path", trained / "checkpoint_last.pt", "--split", "valid", "--rows", 2)
    assert figures["nll"] == pytest.approx(load(trained / "checkpoint_last.pt")["extra_state"]["val_loss"], abs=1e-5)
    assert figures["perplexity"] == pytest.approx(last_logged_ppl((trained / "train.log").read_text()), abs=0.01)
    assert figures["perplexity"] == pytest.approx(math.exp(figures["nll"]))
    assert figures["bits_per_token"] == pytest.approx(figures["nll"] / math.log(2))


def test_scores_are_of_float32_unless_another_precision_is_asked_for(evaluate_here, monkeypatch):
    monkeypatch.setattr(output_precision, "has_native_bfloat16", lambda device: True)
    flags = [OLDER / "data/lm", "--path", OLDER / "lstm_lm_doc.pt", "--output-precision"]
    asked = ([*flags, "float32"], [*flags, "bfloat16"], flags[:-1])
    exact, narrow, default = (evaluate_here(*given)["nll"] for given in asked)
    assert exact == default != narrow and narrow == pytest.approx(exact, rel=0.01)


@pytest.mark.slow
def test_window_is_not_part_of_the_result(trained, data):
    results = [
        evaluate(data, "--path", trained / "checkpoint_last.pt", "--window", window)["nll"] for window in (7, 70, 1000)
    ]
    assert max(results) / min(results) - 1 < 1e-5


def test_tokens_are_counted_from_the_text(trained, data, text):
    figures = evaluate(data, "--path", trained / "checkpoint_last.pt")
    stream = (text / "test.txt").read_text().replace("\n", " </s> ").split()
    vocabulary = {"</s>", *(text / "train.txt").read_text().split()}
    assert figures["num_tokens"] == len(stream) - 1
    assert figures["num_unknown"] == sum(word not in vocabulary for word in stream[1:])


def test_eval_lm_of_the_host_agrees(trained, data):
    flags = ["--user-dir", PLUGINS, "--task", "stateful_lm", "--tokens-per-sample", 50, "--gen-subset", "test"]
    result = run("fairseq_cli.eval_lm", data, "--path", trained / "checkpoint_last.pt", *flags)
    assert result.returncode == 0, result.stderr[-3000:]
    perplexity = float(re.findall(r"Perplexity: ([\d.]+)", result.stderr + result.stdout)[-1])
    assert perplexity == pytest.approx(evaluate(data, "--path", trained / "checkpoint_last.pt")["perplexity"], abs=0.01)


def test_validate_of_the_host_agrees(trained, data):
    flags = ["--user-dir", PLUGINS, "--task", "stateful_lm", "--batch-size", 2, "--valid-subset", "valid"]
    result = run("fairseq_cli.validate", data, "--path", trained / "checkpoint_last.pt", *flags)
    assert result.returncode == 0, result.stderr[-3000:]
    perplexity = float(re.findall(r"ppl ([\d.]+)", result.stderr + result.stdout)[-1])
    assert perplexity == pytest.approx(last_logged_ppl((trained / "train.log").read_text()), abs=0.01)


@pytest.mark.slow
def test_two_checkpoints_are_better_than_their_mean(trained, data, tmp_path):
    train(data, tmp_path, "--max-epoch", 2, "--seed", 2, "--no-epoch-checkpoints")
    paths = [trained / "checkpoint_best.pt", tmp_path / "checkpoint_best.pt"]
    single = [evaluate(data, "--path", path)["nll"] for path in paths]
    assert min(single) - 1 < evaluate(data, "--path", *paths)["nll"] < sum(single) / 2


FLAGS_OF_FAMILIES = {
    "fpnn_lm": ["--input-matrix", "on", "--column-norm", 0],
    "rectifier_rnn_lm": ["--input-matrix", "on", "--column-norm", 0],
    "skipping_rnn_lm": ["--input-matrix", "on", "--word-skip", "the"],
}
"""So that the widths of the test fit, the host's task does, and the text has the word."""


@pytest.mark.slow
def test_columns_that_keep_their_length_are_refused_without_the_stateful_task(data, tmp_path):
    flags = ["--arch", "fpnn_lm", "--task", "language_modeling", "--optimizer", "sgd", "--lr", 1, "--batch-size", 8]
    flags += ["--user-dir", PLUGINS, "--tokens-per-sample", 64, "--max-update", 3, "--embed-dim", 8]
    result = run("fairseq_cli.train", data, *flags, "--hidden-sizes", 8, "--save-dir", tmp_path)
    assert result.returncode != 0
    assert "--column-norm needs --task stateful_lm, which holds it after every update" in result.stderr


@pytest.mark.slow
def test_columns_that_kept_their_length_are_evaluated_by_the_hosts_task(data, tmp_path, run_here):
    flags = ["--arch", "fpnn_lm", "--task", "stateful_lm", "--optimizer", "sgd", "--lr", 1, "--batch-size", 4]
    flags += ["--user-dir", PLUGINS, "--tokens-per-sample", 20, "--max-update", 2, "--embed-dim", 8, "--cpu"]
    result = run("fairseq_cli.train", data, *flags, "--hidden-sizes", 8, "--save-dir", tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]
    flags = ["--path", tmp_path / "checkpoint_last.pt", "--gen-subset", "valid", "--sample-break-mode", "eos"]
    log = run_here(fairseq_cli.eval_lm, data, *flags, "--task", "language_modeling", "--batch-size", 4)
    assert float(re.findall(r"Perplexity: ([\d.]+)", log)[-1]) > 1


@pytest.mark.parametrize("arch", SMALL)
def test_stateless_task_of_the_host(arch, data, tmp_path, run_here, evaluate_here):
    flags = [
        *("--arch", arch, "--task", "language_modeling", "--sample-break-mode", "eos"),
        *("--tokens-per-sample", 64, "--batch-size", 8, "--optimizer", "adam", "--lr", 0.01, "--max-update", 3),
        *("--criterion", "cross_entropy", "--save-dir", tmp_path, "--num-workers", 0),
        *("--embed-dim", 12, "--hidden-sizes", "16 16 12", "--no-epoch-checkpoints"),
        *FLAGS_OF_FAMILIES.get(arch, []),
    ]
    run_here(fairseq_cli.train, data, *flags)
    figures = evaluate_here(data, "--path", tmp_path / "checkpoint_last.pt", "--split", "valid")
    assert 1 < figures["perplexity"] < 2000


def recipe(name, *args):
    result = subprocess.run(
        ["bash", ROOT / "scripts/recipes/lm" / name, *map(str, args)], env=ENVIRONMENT, capture_output=True, text=True
    )
    assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]
    return result.stdout


@pytest.mark.slow
def test_recipes_train_and_fine_tune_until_validation_stops_improving(data, tmp_path):
    directory = tmp_path / "with space"
    small = ["--embed-dim", 12, "--hidden-sizes", "16 16 12", "--batch-size", 4, "--batch-size-valid", 2]
    recipe("train_preset.sh", "lstm_lm_awd_ptb", data, directory, *small, "--max-epoch", 2, "--cpu")
    start = directory / "checkpoint_best.pt"
    flags = [*small, "--max-epoch", 2, "--nonmonotone-interval", 0, "--cpu"]
    log = recipe("fine_tune.sh", "lstm_lm_awd_ptb", start, data, directory / "fin", 3, *flags)
    values = [float(value) for value in re.findall(r"round \d: valid NLL ([\d.]+)", log)]
    best = float(re.findall(r"^valid NLL ([\d.]+): ", log, re.M)[0])
    found = evaluate(data, "--path", directory / "fin/checkpoint_fin.pt", "--split", "valid")["nll"]
    assert found == pytest.approx(best) and best <= min(values)
    assert best <= evaluate(data, "--path", start, "--split", "valid")["nll"]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["tied", "mos", "doc"])
def test_reduced_recipe(data, tmp_path, model):
    more = ["--max-update", "2", "--batch-size", "4"]
    arguments = training_arguments(find_recipe("reduced"), model, data=data, save_dir=tmp_path, seed=1, more=more)
    result = run("fairseq_cli.train", *arguments)
    assert result.returncode == 0, result.stderr[-3000:]
    assert (tmp_path / "checkpoint_last.pt").exists()


@pytest.mark.slow
def test_fine_tuning_stops_at_the_trigger(trained, data, tmp_path):
    shutil.copy(trained / "checkpoint_best.pt", tmp_path / "start.pt")
    flags = ["--averaging", "immediate", "--finetune-from-model", tmp_path / "start.pt", "--lr", "30"]
    log = train(data, tmp_path / "tuned", *flags, "--max-epoch", 40, "--no-epoch-checkpoints", "--clip-norm", "100")
    assert "fine-tuning ends" in log and "stopping training" in log
    assert log.count("end of epoch") < 40
    again = train(data, tmp_path / "tuned", *flags, "--max-epoch", 40, "--no-epoch-checkpoints")
    assert "end of epoch" not in again


@pytest.mark.slow
def test_summary_of_runs(trained, data, tmp_path):
    result = run("fairseq_plugins.cli.compare_runs", data, "--path", f"small DOC={trained}", "--out", tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]
    (summary,) = json.loads((tmp_path / "runs.json").read_text())["runs"]
    expected = evaluate(data, "--path", trained / "checkpoint_best.pt")["perplexity"]
    assert summary["test_perplexity"] == pytest.approx(expected)
    assert f"{expected:.2f}" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "learning_curves.png").read_bytes().startswith(b"\x89PNG")


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
    monkeypatch.setattr(
        layer_masking, "masked_perplexities", lambda model, tokens, mask, **_: kinds.append(mask.kind) or {1: 2.0}
    )
    model = ["--path", f"A={OLDER / 'lstm_lm_doc.pt'}", "--probabilities", "0.5", "--cpu", "--json"]
    MaskLayers().main([str(OLDER / "data/lm"), *model, *flags])
    curves = json.loads(capsys.readouterr().out)["curves"]
    assert kinds == [curve["mask"] for curve in curves] == [kind] * 3


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


@pytest.mark.slow
def test_bf16_trains_where_there_is_no_tpu(data, tmp_path):
    flags = [
        *MODEL_FLAGS,
        *("--user-dir", PLUGINS, "--task", "stateful_lm", "--batch-size", 4, "--batch-size-valid", 2),
    ]
    flags += ["--tokens-per-sample", 20, "--criterion", "regularized_cross_entropy", "--balance", 0.001, "--cpu"]
    flags += ["--optimizer", "sgd", "--lr", 5, "--clip-norm", 0.25, "--max-update", 100, "--log-format", "simple"]
    result = run("fairseq_cli.train", data, "--save-dir", tmp_path, *flags, "--bf16")
    assert result.returncode == 0, result.stderr[-3000:]
    log = result.stdout + result.stderr
    assert "num_updates 100" in log and "nan" not in log.lower().split("begin training epoch", 1)[1]
    weight = load(tmp_path / "checkpoint_last.pt")["model"]["decoder.output.prior.weight"]
    assert torch.equal(
        weight, weight.bfloat16().float()
    )  # the host saves 32 bits, of which the last 16 were never used
    curve = [float(ppl) for ppl in re.findall(r"\| valid on 'valid' subset \|.*?\| ppl ([\d.]+)", log)]
    assert curve[-1] < curve[0]
