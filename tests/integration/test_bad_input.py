"""A user's mistake ends with a line that names the cause and the remedy. It overwrites nothing."""

import re
import shutil

import fairseq_cli.train
import pytest
from commands import PLUGINS, exchange_words, preprocess, run, run_training, training_arguments
from translation_commands import EPOCHS, FAIRSEQ_FLAGS, TRANSFORMER_SIZES, train_translation, training_flags


@pytest.fixture
def fail(run_here):
    """``fail(data, save_dir, *flags)``: train in this process, expect an error, and return its line."""

    def fail(data, save_dir, *flags) -> str:
        with pytest.raises(ValueError) as raised:
            run_here(fairseq_cli.train, *training_arguments(data, save_dir, "--max-update", 2, *flags))
        assert not list(save_dir.glob("*.pt"))
        (line,) = str(raised.value).splitlines()
        return line

    return fail


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--dropout-input", "-0.1"], r"--dropout-input -0.1: a dropout rate is the probability to drop"),
        (["--latent-dropout", "1"], r"--latent-dropout 1.0: a dropout rate is the probability to drop"),
        (["--experts-per-layer", "1 3"], r'--experts-per-layer "1 3" has 2 numbers: give 3'),
        (["--experts-per-layer", "3.5"], r'--experts-per-layer "3.5": .* for example --experts-per-layer "0 1 3"'),
        (["--balance", "inf"], r"--balance inf: give 0 or more, and finite"),
        (["--experts-per-layer", "0 0 0"], r'--experts-per-layer "0 0 0" has no expert'),
        (
            ["--label-depth", "2"],
            r"--label-depth has no effect on .* doc: leave it out, or add --label-encoder drill",
        ),
        (
            ["--output-layer", "drill"],
            r"--output-layer drill compares hidden states, 16 wide, with word embeddings, 12",
        ),
        (["--output-layer", "dual", "--label-width", "0"], r"--label-width 0: give a value above 0"),
        (["--output-layer", "tied"], r"give the last layer the width of the embedding"),
        (
            ["--window-lengths", "fixed", "--max-window", "30"],
            r"--max-window 30 limits random windows: add --window-lengths random",
        ),
        (["--batch-size", "5000"], r"tokens, too few for 5,000 rows of at least 2: use a larger corpus or a smaller"),
        (["--train-subset", "training"], r"there is no split 'training' in .*: prepare the corpus"),
    ],
)
def test_flag(data, tmp_path, flags, message, fail):
    assert re.search(message, fail(data, tmp_path, *flags))


@pytest.mark.parametrize("first, then", [("language_modeling", "stateful_lm"), ("stateful_lm", "language_modeling")])
def test_an_epoch_of_another_task_is_not_resumed(first, then, data, tmp_path, run_here):
    flags = ["--arch", "lstm_lm_awd", "--embed-dim", 8, "--hidden-sizes", 8, "--optimizer", "sgd", "--batch-size", 4]
    flags += ["--criterion", "regularized_cross_entropy", "--tokens-per-sample", 20, "--disable-validation"]
    begun, resumed = tmp_path / "begun", tmp_path / "resumed"
    run_here(fairseq_cli.train, data, *flags, "--task", first, "--save-dir", begun, "--max-update", 2)
    flags += ["--task", then, "--restore-file", begun / "checkpoint_last.pt", "--save-dir", resumed, "--max-update", 3]
    with pytest.raises(ValueError, match="stopped inside an epoch of another --task.* with --reset-dataloader"):
        run_here(fairseq_cli.train, data, *flags)
    run_here(fairseq_cli.train, data, *flags, "--reset-dataloader")


@pytest.mark.parametrize(
    "flags, message, remedy",
    [
        (["--criterion", "cross_entropy"], "another criterion: give the flags", "--reset-optimizer"),
        (["--optimizer", "l2_adam"], "another optimizer: give the flags", "--reset-optimizer"),
        (["--bf16"], "another optimizer: give the flags", "--reset-optimizer"),
        (["--lr-scheduler", "cosine"], "the checkpoint is of another --lr-scheduler", "--reset-lr-scheduler"),
    ],
)
def test_a_run_is_not_resumed_with_other_parts(flags, message, remedy, data, tmp_path, run_here):
    begun, resumed = tmp_path / "begun", tmp_path / "resumed"
    run = [fairseq_cli.train, data, "--task", "stateful_lm", "--arch", "lstm_lm_awd", "--embed-dim", 8]
    run += ["--hidden-sizes", 8, "--optimizer", "sgd", "--lr", 1, "--lr-scheduler", "fixed", "--batch-size", 4]
    run += ["--criterion", "regularized_cross_entropy", "--tokens-per-sample", 20, "--disable-validation"]
    run_here(*run, "--save-dir", begun, "--max-update", 2)
    run += ["--restore-file", begun / "checkpoint_last.pt", "--save-dir", resumed, "--max-update", 3, *flags]
    with pytest.raises(ValueError, match=f"{message}.*{remedy}"):
        run_here(*run)
    run_here(*run, remedy)


def test_translation_flag(pair_data, tmp_path, run_here):
    model = ["--arch", "transformer_doc", *TRANSFORMER_SIZES, "--decoder-layers", 0]
    with pytest.raises(ValueError, match="--decoder-layers 0: give at least 1"):
        run_here(fairseq_cli.train, *training_flags(pair_data, tmp_path, model=model, sizes=[]))
    assert not list(tmp_path.glob("*.pt"))


@pytest.mark.parametrize("model", ["lstm_encdec", "transformer_doc"])
def test_a_long_sentence_of_valid_is_refused_before_training(model, pair_data, tmp_path, run_here):
    options = {"sizes": TRANSFORMER_SIZES} if model == "transformer_doc" else {}
    flags = ["--max-source-positions", 4, "--max-target-positions", 4, "--max-epoch", 1]
    arguments = training_flags(pair_data, tmp_path, *flags, model=["--arch", model], **options)
    with pytest.raises(ValueError, match=r"^valid: \d+ sentences are too long, such as number \d+ with \d+ and \d+ t"):
        run_here(fairseq_cli.train, *arguments)
    assert not any(tmp_path.glob("*.pt"))
    log = run_here(fairseq_cli.train, *arguments, "--skip-invalid-size-inputs-valid-test")
    assert "valid on 'valid' subset" in log


def test_missing_data_directory(tmp_path, fail):
    line = fail(tmp_path / "nowhere", tmp_path)
    assert "dict.txt does not exist: a language model needs a folder of one side" in line


@pytest.mark.parametrize("content, message", [("", "is empty"), ("\n \n\n", "holds 3 blank lines and no word")])
def test_corpus_without_words(text, data, tmp_path, content, message, fail):
    broken = tmp_path / "text"
    shutil.copytree(text, broken)
    (broken / "train.txt").write_text(content)
    out = preprocess(broken, tmp_path / "bin", "--srcdict", data / "dict.txt")
    line = fail(out, tmp_path)
    assert f"split 'train' in {out} {message}" in line and "check the text" in line


@pytest.mark.parametrize("flags", [[], ["--finetune-from-model", "checkpoint_last.pt"]])
def test_training_on_with_other_words(trained, data, tmp_path, flags):
    shutil.copy(trained / "checkpoint_last.pt", tmp_path)
    before = (tmp_path / "checkpoint_last.pt").read_bytes()
    other = exchange_words(data, tmp_path / "bin")
    save_dir = tmp_path / "tuned" if flags else tmp_path
    result = run_training(other, save_dir, "--max-epoch", 3, *flags, cwd=tmp_path)
    assert result.returncode != 0
    assert "is not the one that the checkpoint was trained with" in result.stderr.strip().splitlines()[-1]
    assert (tmp_path / "checkpoint_last.pt").read_bytes() == before


def evaluate_and_fail(*args) -> str:
    result = run("fairseq_plugins", "lm", "eval", *args)
    assert result.returncode == 2 and result.stdout == ""
    return result.stderr.strip().splitlines()[-1]


def test_evaluation_with_other_words(trained, data, tmp_path):
    checkpoint = trained / "checkpoint_best.pt"
    line = evaluate_and_fail(exchange_words(data, tmp_path / "bin"), "--path", checkpoint)
    assert str(checkpoint) in line and "is not the one that the checkpoint was trained with" in line


def test_evaluation_of_a_missing_or_truncated_file_or_split(trained, data, tmp_path):
    checkpoint, truncated = trained / "checkpoint_best.pt", tmp_path / "truncated.pt"
    truncated.write_bytes(checkpoint.read_bytes()[:5000])
    assert "missing.pt does not exist: give a checkpoint" in evaluate_and_fail(data, "--path", tmp_path / "missing.pt")
    assert "truncated.pt is no checkpoint or was cut short" in evaluate_and_fail(data, "--path", truncated)
    assert "there is no split 'dev'" in evaluate_and_fail(data, "--path", checkpoint, "--split", "dev")
    assert "--rows 0: give at least 1" in evaluate_and_fail(data, "--path", checkpoint, "--rows", 0)


@pytest.mark.parametrize("side, flag", [("src", "--srcdict"), ("tgt", "--tgtdict")])
def test_translation_with_other_words(translator, pair_data, tmp_path, side, flag):
    other = exchange_words(pair_data, tmp_path / "bin", f"dict.{side}.txt")
    checkpoint = tmp_path / "checkpoint_last.pt"
    shutil.copy(translator / "checkpoint_last.pt", checkpoint)
    before = checkpoint.read_bytes()
    name = {"src": "source", "tgt": "target"}[side]
    told = f"error: the {name} dictionary, dict.{side}.txt, is not the one that the checkpoint was trained with"
    decoded = run("fairseq_cli.generate", other, *FAIRSEQ_FLAGS, "--path", checkpoint)
    trained_on = train_translation(other, tmp_path, "--max-epoch", EPOCHS + 1)
    tuned = train_translation(other, tmp_path / "tuned", "--finetune-from-model", checkpoint, "--max-epoch", 1)
    for result in (decoded, trained_on, tuned):
        assert result.returncode != 0
        line = result.stderr.strip().splitlines()[-1]
        assert line.startswith(told) and f"fairseq-preprocess {flag}" in line
    assert checkpoint.read_bytes() == before


def test_language_model_with_other_words_under_the_task_of_fairseq(data, tmp_path):
    flags = ["--task", "language_modeling", "--arch", "lstm_lm_awd", "--embed-dim", 8, "--hidden-sizes", "8 8"]
    flags += ["--criterion", "cross_entropy", "--optimizer", "sgd", "--lr", 1, "--batch-size", 2, "--cpu"]
    flags += ["--tokens-per-sample", 20, "--user-dir", PLUGINS, "--num-workers", 0, "--disable-validation"]
    first = run("fairseq_cli.train", data, "--save-dir", tmp_path, *flags, "--max-update", 1)
    assert first.returncode == 0, first.stderr[-3000:]
    other = exchange_words(data, tmp_path / "bin")
    then = run("fairseq_cli.train", other, "--save-dir", tmp_path, *flags, "--max-update", 2)
    line = then.stderr.strip().splitlines()[-1]
    assert then.returncode != 0
    assert line.startswith("error: the vocabulary, dict.txt, is not the one that the checkpoint was trained with")


# runs that diverge

RATE = ["--lr", "1e37", "--max-epoch", 1, "--disable-validation"]


def diverge(run_here, arguments) -> str:
    with pytest.raises(ValueError) as raised:
        run_here(fairseq_cli.train, *arguments)
    (line,) = str(raised.value).splitlines()
    return line


def test_a_language_model_that_diverges(data, tmp_path, run_here):
    line = diverge(run_here, training_arguments(data, tmp_path, *RATE, "--clip-norm", 0))
    lower = r"lower --lr \(now 1e\+37\), --activation-regularization \(now 2\), .*, --balance \(now 0.001\)"
    told = rf"the training diverged at update [2-9]: .* is inf or NaN.*; {lower}, or give --clip-norm$"
    assert re.match(told, line), line
    assert not list(tmp_path.glob("checkpoint*.pt"))


def test_a_recurrence_that_explodes_in_validation_alone(data, tmp_path, run_here):
    """The loss of noise-contrastive estimation is bounded, the one of validation is not."""
    model = ("--arch", "rectifier_rnn_lm", "--recurrent-scale", 3, "--criterion", "noise_contrastive")
    stream = ("--task", "stateful_lm", "--tokens-per-sample", 10, "--batch-size", 2)
    flags = ("--user-dir", PLUGINS, *stream, *model, "--optimizer", "sgd", "--lr", 0.1, "--max-update", 1, "--cpu")
    line = diverge(run_here, [data, "--save-dir", tmp_path, *flags])
    told = r"the training diverged at update 1: the loss of validation is inf or NaN; lower --lr"
    assert re.match(told, line), line
    assert not list(tmp_path.glob("checkpoint*.pt"))


def test_a_transformer_that_diverges(pair_data, tmp_path, run_here):
    arguments = training_flags(pair_data, tmp_path, *RATE, model=("--arch", "transformer_doc"), sizes=TRANSFORMER_SIZES)
    line = diverge(run_here, arguments)
    assert re.match(r"the training diverged at update \d+: .* is inf or NaN.*; lower --lr", line)
