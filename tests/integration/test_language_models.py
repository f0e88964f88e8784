"""The commands of a language model's life: train, validate, evaluate, score, fine-tune."""

import json
import math
import re

import fairseq_cli.eval_lm
import fairseq_cli.train
import pytest
from commands import load, succeed, validated
from fairseq.data import Dictionary
from paths import SMALL_MODELS
from short_trainings import FAMILIES


def test_evaluation_equals_what_training_logged(trained, data, evaluate_here):
    figures = evaluate_here(data, "--path", trained / "checkpoint_last.pt", "--split", "valid", "--rows", 2)
    assert figures["nll"] == pytest.approx(load(trained / "checkpoint_last.pt")["extra_state"]["val_loss"], abs=1e-5)
    logged = validated((trained / "train.log").read_text(), "ppl")
    assert figures["perplexity"] == pytest.approx(logged[-1], abs=0.01)
    assert figures["perplexity"] == pytest.approx(math.exp(figures["nll"]))
    assert figures["bits_per_token"] == pytest.approx(figures["nll"] / math.log(2))


def test_tokens_are_counted_from_the_text(trained, data, text, evaluate_here):
    figures = evaluate_here(data, "--path", trained / "checkpoint_last.pt")
    stream = (text / "test.txt").read_text().replace("\n", " </s> ").split()
    vocabulary = {"</s>", *(text / "train.txt").read_text().split()}
    assert figures["num_tokens"] == len(stream) - 1
    assert figures["num_unknown"] == sum(word not in vocabulary for word in stream[1:])


FLAGS_OF_FAMILIES = {
    "fpnn_lm": ["--input-matrix", "on", "--column-norm", 0],
    "rectifier_rnn_lm": ["--input-matrix", "on", "--column-norm", 0],
    "skipping_rnn_lm": ["--input-matrix", "on", "--word-skip", "the"],
}
"""So that the widths of the test fit, fairseq's task does, and the text has the word."""


@pytest.mark.parametrize("flags, precision", [(["--bf16"], 2**-8), (["--amp"], 1e-6)])
def test_columns_keep_their_length_and_fairseqs_task_evaluates_the_model(flags, precision, run_here, tmp_path):
    run_here(
        fairseq_cli.train, *FAMILIES["FPNN"], "--column-norm", 2, *flags, "--max-update", 5, "--save-dir", tmp_path
    )
    weights = load(tmp_path / "checkpoint_last.pt")["model"]
    for name in ("decoder.embedding.weight", "decoder.output.projection.weight"):
        assert weights[name].norm(dim=0).tolist() == pytest.approx([2] * 8, rel=precision)
    flags = ["--path", tmp_path / "checkpoint_last.pt", "--gen-subset", "valid", "--sample-break-mode", "eos"]
    log = run_here(fairseq_cli.eval_lm, SMALL_MODELS / "data/lm", *flags, "--task", "language_modeling")
    assert float(re.findall(r"Perplexity: ([\d.]+)", log)[-1]) > 1


@pytest.mark.parametrize("arch", ["lstm_lm_doc", *FLAGS_OF_FAMILIES])
def test_stateless_task_of_fairseq(arch, data, tmp_path, run_here, evaluate_here):
    flags = [
        *("--arch", arch, "--task", "language_modeling", "--sample-break-mode", "eos"),
        *("--tokens-per-sample", 64, "--batch-size", 8, "--optimizer", "adam", "--lr", 0.01, "--max-update", 3),
        *("--criterion", "cross_entropy", "--save-dir", tmp_path, "--num-workers", 0),
        *("--embed-dim", 12, "--hidden-sizes", "16 16 12", "--no-epoch-checkpoints"),
        *FLAGS_OF_FAMILIES.get(arch, []),
        *("--log-interval", 1, "--log-format", "simple"),
    ]
    log = run_here(fairseq_cli.train, data, *flags)
    gradients = [float(norm) for norm in re.findall(r" gnorm=([\d.]+)", log)]
    vanishes = arch == "skipping_rnn_lm"  # small inputs are cubed in each of three layers, where it has one
    assert len(gradients) == 3 and (vanishes or min(gradients) > 0)
    figures = evaluate_here(data, "--path", tmp_path / "checkpoint_last.pt", "--split", "valid")
    num_words = len(Dictionary.load(str(data / "dict.txt")))
    assert 1 < figures["perplexity"] < num_words or vanishes and figures["perplexity"] == pytest.approx(num_words)


def test_recipes_train_and_fine_tune_in_rounds(data, tmp_path, evaluate_here):
    directory = tmp_path / "with space"
    small = ["--embed-dim", 12, "--hidden-sizes", "16 16 12", "--batch-size", 4, "--batch-size-valid", 2]
    training = ["train", "presets", "lstm_lm_awd_ptb", data, "--save-dir", directory, *small, "--max-epoch", 2, "--cpu"]
    succeed("fairseq_plugins", *training)
    start = directory / "checkpoint_best.pt"
    flags = [*small, "--max-epoch", 2, "--nonmonotone-interval", 0, "--cpu"]
    where = ["--path", start, "--save-dir", directory / "fin", "--rounds", 2]
    log = succeed("fairseq_plugins", "fine-tune", data, "--arch", "lstm_lm_awd_ptb", *where, *flags).stdout
    values = [float(value) for value in re.findall(r"round \d: valid NLL ([\d.]+)", log)]
    best = float(re.findall(r"^valid NLL ([\d.]+): ", log, re.M)[0])
    found = evaluate_here(data, "--path", directory / "fin/checkpoint_fin.pt", "--split", "valid")["nll"]
    assert found == pytest.approx(best) and best <= min(values)
    assert best <= evaluate_here(data, "--path", start, "--split", "valid")["nll"]


def test_fine_tuning_stops_at_the_trigger(tmp_path, run_here):
    training = [*FAMILIES["DOC"], "--no-epoch-checkpoints", "--save-dir"]
    run_here(fairseq_cli.train, *training, tmp_path / "start", "--max-epoch", 1)
    flags = ["--averaging", "immediate", "--finetune-from-model", tmp_path / "start/checkpoint_last.pt", "--lr", 30]
    training += [tmp_path / "tuned", *flags, "--max-epoch", 40, "--clip-norm", 100]
    log = run_here(fairseq_cli.train, *training)
    assert "fine-tuning ends" in log and "stopping training" in log
    assert log.count("end of epoch") < 40
    assert "end of epoch" not in run_here(fairseq_cli.train, *training)


def test_a_run_that_diverges_ends_with_the_flags_to_lower(tmp_path, run_here):
    flags = ["--lr", "1e37", "--clip-norm", 0, "--disable-validation", "--save-dir", tmp_path]
    with pytest.raises(ValueError) as error:
        run_here(fairseq_cli.train, *FAMILIES["DOC"], *flags)
    told = (
        r"the run diverged at update [2-9]: .* is inf or NaN.*; lower --lr \(now 1e\+37\), --balance \(now 0.001\), or"
    )
    assert re.match(f"{told} give --clip-norm$", str(error.value)), error.value
    assert not list(tmp_path.glob("checkpoint*.pt"))


def test_a_recurrence_that_explodes_in_validation_alone_ends_the_run(data, tmp_path, run_here):
    """The loss of noise-contrastive estimation is bounded, the one of validation is not."""
    flags = ["--arch", "rectifier_rnn_lm", "--recurrent-scale", 3, "--criterion", "noise_contrastive"]
    flags += ["--task", "stateful_lm", "--tokens-per-sample", 10, "--batch-size", 2, "--save-dir", tmp_path]
    with pytest.raises(ValueError, match="^the run diverged at update 1: the loss of validation is inf or NaN; lower"):
        run_here(fairseq_cli.train, data, *flags, "--optimizer", "sgd", "--lr", 0.1, "--max-update", 1)
    assert not list(tmp_path.glob("checkpoint*.pt"))


def test_summary_of_runs(trained, data, call, evaluate_here, tmp_path):
    status, _, told = call("compare runs", data, "--cpu", "--path", f"small DOC={trained}", "--out", tmp_path)
    assert status == 0 and f"== measure {trained} (1 of 1)" in told
    (summary,) = json.loads((tmp_path / "runs.json").read_text())["runs"]
    expected = evaluate_here(data, "--path", trained / "checkpoint_best.pt")["perplexity"]
    assert summary["test_perplexity"] == pytest.approx(expected)
    assert f"{expected:.2f}" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "learning_curves.png").read_bytes().startswith(b"\x89PNG")


def test_curves_leave_out_runs_before_their_first_validation(trained, call, refuse, tmp_path):
    begun = tmp_path / "begun"
    begun.mkdir()
    log = (trained / "train.log").read_text()
    (begun / "train.log").write_text(log[: log.index("begin validation")])
    status, printed, told = call("compare curves", "--path", f"whole={trained}", f"begun={begun}")
    assert status == 0 and f"no validation yet: {begun}/train.log" in told
    assert "| whole" in printed and "| begun" not in printed
    assert "begun/train.log holds no validation" in refuse("compare curves", "--path", f"begun={begun}")
