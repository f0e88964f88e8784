"""A user's mistake ends with a line that names the cause and the remedy. It overwrites nothing."""

import re
import shutil

import fairseq_cli.generate
import fairseq_cli.train
import pytest
from binarised_data import copy_data
from commands import training_arguments
from translation_commands import EPOCHS, FAIRSEQ_FLAGS, translator_arguments


def exchange_words(data, out, dictionary="dict.txt"):
    """A copy of data with two words of the dictionary exchanged."""
    copy_data(data, out)
    lines = (data / dictionary).read_text().splitlines()
    lines[3], lines[4] = lines[4], lines[3]
    (out / dictionary).write_text("\n".join(lines) + "\n")
    return out


def refused(run_here, command, *arguments) -> str:
    """The one line of the error of a command of fairseq."""
    with pytest.raises(ValueError) as raised:
        run_here(command, *arguments)
    (line,) = str(raised.value).splitlines()
    return line


@pytest.fixture
def fail(run_here):
    """``fail(data, save_dir, *flags)``: train in this process, expect an error, and return its line."""

    def fail(data, save_dir, *flags) -> str:
        line = refused(run_here, fairseq_cli.train, *training_arguments(data, save_dir, "--max-update", 2, *flags))
        assert not list(save_dir.glob("*.pt"))
        return line

    return fail


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--dropout-input", "-0.1"], r"--dropout-input -0.1: a dropout rate is the probability to drop"),
        (["--balance", "inf"], r"--balance inf: give 0 or more, and finite"),
        (
            ["--window-lengths", "fixed", "--max-window", "30"],
            r"--max-window 30 limits random windows: add --window-lengths random",
        ),
        (["--batch-size", "5000"], r"tokens, too few for 5,000 rows of at least 2: use a larger corpus or a smaller"),
        (["--train-subset", "training"], r"there is no split 'training' in .*: prepare the corpus"),
    ],
)
def test_a_flag_of_model_criterion_or_task_is_refused_before_training(data, tmp_path, flags, message, fail):
    assert re.search(message, fail(data, tmp_path, *flags))


SMALL = [
    *("--task", "stateful_lm", "--arch", "lstm_lm_awd", "--embed-dim", 8, "--hidden-sizes", 8, "--batch-size", 4),
    *("--optimizer", "sgd", "--lr", 1, "--lr-scheduler", "fixed", "--criterion", "regularized_cross_entropy"),
    *("--tokens-per-sample", 20, "--disable-validation"),
]
OF_FAIRSEQ = ["--task", "language_modeling"]


@pytest.mark.parametrize(
    "first, then, message, remedy",
    [
        (OF_FAIRSEQ, [], "stopped inside an epoch of another --task", "--reset-dataloader"),
        ([], ["--criterion", "cross_entropy"], "another criterion: give the flags", "--reset-optimizer"),
        ([], ["--optimizer", "l2_adam"], "another optimizer: give the flags", "--reset-optimizer"),
        ([], ["--lr-scheduler", "cosine"], "the checkpoint is of another --lr-scheduler", "--reset-lr-scheduler"),
    ],
)
def test_a_run_is_resumed_with_other_parts_only_by_a_reset(first, then, message, remedy, data, tmp_path, run_here):
    begun = tmp_path / "begun/checkpoint_last.pt"
    run_here(fairseq_cli.train, data, *SMALL, *first, "--save-dir", begun.parent, "--max-update", 2)
    resumed = [*SMALL, *then, "--restore-file", begun, "--save-dir", tmp_path / "resumed", "--max-update", 3]
    with pytest.raises(ValueError, match=f"{message}.*{remedy}"):
        run_here(fairseq_cli.train, data, *resumed)
    run_here(fairseq_cli.train, data, *resumed, remedy)


def test_a_long_sentence_of_valid_is_refused_before_training(pair_data, tmp_path, run_here):
    flags = ["--max-source-positions", 4, "--max-target-positions", 4, "--max-epoch", 1]
    arguments = translator_arguments(pair_data, tmp_path, *flags, model=["--arch", "lstm_encdec"])
    with pytest.raises(ValueError, match=r"^valid: \d+ sentences are too long, such as number \d+ with \d+ and \d+ t"):
        run_here(fairseq_cli.train, *arguments)
    assert not any(tmp_path.glob("*.pt"))
    log = run_here(fairseq_cli.train, *arguments, "--skip-invalid-size-inputs-valid-test")
    assert "valid on 'valid' subset" in log


def test_missing_data_directory(tmp_path, fail):
    line = fail(tmp_path / "nowhere", tmp_path)
    assert "dict.txt does not exist: a language model needs a folder of one side" in line


OTHER_WORDS = "is not the one that the checkpoint was trained with"


def test_a_language_model_with_other_words(trained, data, tmp_path, run_here, refuse):
    checkpoint = shutil.copy(trained / "checkpoint_last.pt", tmp_path / "checkpoint_last.pt")
    before = checkpoint.read_bytes()
    other = exchange_words(data, tmp_path / "bin")
    for save_dir, flags in ((tmp_path, []), (tmp_path / "tuned", ["--finetune-from-model", checkpoint])):
        arguments = training_arguments(other, save_dir, "--max-epoch", 3, *flags)
        assert OTHER_WORDS in refused(run_here, fairseq_cli.train, *arguments)
    told = refuse("lm eval", other, "--path", checkpoint)
    assert str(checkpoint) in told and OTHER_WORDS in told
    assert checkpoint.read_bytes() == before


def test_translation_with_other_words(translator, pair_data, tmp_path, run_here):
    other = exchange_words(pair_data, tmp_path / "bin", "dict.src.txt")
    checkpoint = shutil.copy(translator / "checkpoint_last.pt", tmp_path / "checkpoint_last.pt")
    before = checkpoint.read_bytes()
    tuning = ["--finetune-from-model", checkpoint, "--max-epoch", 1]
    for line in (
        refused(run_here, fairseq_cli.generate, other, *FAIRSEQ_FLAGS, "--path", checkpoint),
        refused(run_here, fairseq_cli.train, *translator_arguments(other, tmp_path, "--max-epoch", EPOCHS + 1)),
        refused(run_here, fairseq_cli.train, *translator_arguments(other, tmp_path / "tuned", *tuning)),
    ):
        assert line.startswith(f"the source dictionary, dict.src.txt, {OTHER_WORDS}")
        assert "fairseq-preprocess --srcdict" in line
    assert checkpoint.read_bytes() == before


def test_language_model_with_other_words_under_the_task_of_fairseq(data, tmp_path, run_here):
    flags = [*SMALL, *OF_FAIRSEQ, "--criterion", "cross_entropy", "--save-dir", tmp_path, "--max-update"]
    run_here(fairseq_cli.train, data, *flags, 1)
    line = refused(run_here, fairseq_cli.train, exchange_words(data, tmp_path / "bin"), *flags, 2)
    assert line.startswith(f"the vocabulary, dict.txt, {OTHER_WORDS}")


# runs that diverge

RATE = ["--lr", "1e37", "--max-epoch", 1, "--disable-validation"]


def test_a_language_model_that_diverges(data, tmp_path, run_here):
    line = refused(run_here, fairseq_cli.train, *training_arguments(data, tmp_path, *RATE, "--clip-norm", 0))
    lower = r"lower --lr \(now 1e\+37\), --activation-regularization \(now 2\), .*, --balance \(now 0.001\)"
    told = rf"the run diverged at update [2-9]: .* is inf or NaN.*; {lower}, or give --clip-norm$"
    assert re.match(told, line), line
    assert not list(tmp_path.glob("checkpoint*.pt"))


def test_a_recurrence_that_explodes_in_validation_alone(data, tmp_path, run_here):
    """The loss of noise-contrastive estimation is bounded, the one of validation is not."""
    flags = ["--arch", "rectifier_rnn_lm", "--recurrent-scale", 3, "--criterion", "noise_contrastive"]
    flags += ["--task", "stateful_lm", "--tokens-per-sample", 10, "--batch-size", 2, "--save-dir", tmp_path]
    line = refused(run_here, fairseq_cli.train, data, *flags, "--optimizer", "sgd", "--lr", 0.1, "--max-update", 1)
    told = r"the run diverged at update 1: the loss of validation is inf or NaN; lower --lr"
    assert re.match(told, line), line
    assert not list(tmp_path.glob("checkpoint*.pt"))
