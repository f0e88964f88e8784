"""Runs that start from a checkpoint: with other flags, other words or missing files, and fine-tuning."""

import inspect
import json
import random
import re
import shutil

import fairseq_cli.generate
import fairseq_cli.train
import pytest
import torch
from binarised_data import copy_data
from commands import load, run, succeed, training_arguments, updates_of
from fairseq import checkpoint_utils, options
from fairseq.tasks.translation import TranslationTask
from fairseq.trainer import Trainer
from paths import SMALL_MODELS
from short_trainings import FAMILIES
from translation_commands import FAIRSEQ_FLAGS, preprocess_pairs, translate, translator_arguments

import fairseq_plugins
from fairseq_plugins.evaluation.checkpoints import load_with_task
from fairseq_plugins.files import file_digest
from fairseq_plugins.models.presets import as_arguments
from fairseq_plugins.recipes import fine_tuning

# flags of a run beside those of the checkpoint that it starts from

LM_DATA, PAIR_DATA = SMALL_MODELS / "data/lm", SMALL_MODELS / "data/translation"
SIZES = [
    f"--{side}-{size}"
    for side in ("encoder", "decoder")
    for size in ("embed-dim=8", "ffn-embed-dim=16", "attention-heads=2", "layers=1")
]
TRANSFORMER = ["--arch", "transformer_full", *SIZES]
TRAINING = ["--batch-size", 10, "--optimizer", "adam", "--lr", 0.002, "--no-epoch-checkpoints", "--disable-validation"]
PAIRS = [PAIR_DATA, *FAIRSEQ_FLAGS, "--criterion", "label_smoothed_cross_entropy", *TRAINING]


def test_checkpoints_of_the_packages_models_hold_its_version(translator):
    assert load(translator / "checkpoint_last.pt")["extra_state"]["fairseq_plugins"] == fairseq_plugins.__version__


def test_other_settings_of_fairseqs_models_are_refused(run_here, tmp_path):
    flags = [LM_DATA, "--task", "language_modeling", "--arch", "transformer_lm", "--tokens-per-sample", 10, *TRAINING]
    flags += ["--save-dir", tmp_path, *(flag for flag in SIZES if flag.startswith("--decoder"))]
    run_here(fairseq_cli.train, *flags, "--max-update", 1)
    before = (tmp_path / "checkpoint_last.pt").read_bytes()
    for other, said in (
        ("--activation-fn=gelu", "--activation-fn relu, this"),
        ("--decoder-attention-heads=4", "2, this"),
        ("--decoder-ffn-embed-dim=32", r"last.pt does not fit .*\(size mismatch for decoder.layers.0.fc1.weight"),
    ):
        with pytest.raises(ValueError, match=said):
            run_here(fairseq_cli.train, *flags, other, "--max-update", 2)
        assert (tmp_path / "checkpoint_last.pt").read_bytes() == before
    run_here(fairseq_cli.train, *flags, "--dropout", 0.3, "--max-update", 2)
    assert (tmp_path / "checkpoint_last.pt").read_bytes() != before


SMALL = [
    *("--task", "stateful_lm", "--arch", "lstm_lm_awd", "--embed-dim", 8, "--hidden-sizes", 8, "--batch-size", 4),
    *("--optimizer", "sgd", "--lr", 1, "--lr-scheduler", "fixed", "--criterion", "regularized_cross_entropy"),
    *("--tokens-per-sample", 10, "--disable-validation"),
]


@pytest.mark.parametrize(
    "first, then, message, remedy",
    [
        (["--task", "language_modeling"], [], "stopped inside an epoch of another --task", "--reset-dataloader"),
        ([], ["--criterion", "cross_entropy"], "another criterion: give the flags", "--reset-optimizer"),
        ([], ["--optimizer", "l2_adam"], "another optimizer: give the flags", "--reset-optimizer"),
        ([], ["--lr-scheduler", "cosine"], "the checkpoint is of another --lr-scheduler", "--reset-lr-scheduler"),
    ],
)
def test_a_run_is_resumed_with_other_parts_only_by_a_reset(first, then, message, remedy, run_here, tmp_path):
    begun = tmp_path / "begun/checkpoint_last.pt"
    run_here(fairseq_cli.train, LM_DATA, *SMALL, *first, "--save-dir", begun.parent, "--max-update", 2)
    resumed = [*SMALL, *then, "--restore-file", begun, "--save-dir", tmp_path / "resumed", "--max-update", 3]
    with pytest.raises(ValueError, match=f"{message}.*{remedy}"):
        run_here(fairseq_cli.train, LM_DATA, *resumed)
    run_here(fairseq_cli.train, LM_DATA, *resumed, remedy)


def test_a_translator_is_not_used_with_other_words(run_here, tmp_path):
    other = copy_data(PAIR_DATA, tmp_path / "other")
    lines = (other / "dict.src.txt").read_text().splitlines()
    (other / "dict.src.txt").write_text("\n".join([lines[1], lines[0], *lines[2:]]) + "\n")
    checkpoint = SMALL_MODELS / "lstm_encdec_doc.pt"
    _, *flags = FAMILIES["encoder-decoder, DOC"]
    training = [other, *flags, "--save-dir", tmp_path / "run", "--max-update", 1]
    for command, *flags in (
        (fairseq_cli.generate, other, *FAIRSEQ_FLAGS, "--path", checkpoint),
        (fairseq_cli.train, *training, "--restore-file", checkpoint),
        (fairseq_cli.train, *training, "--finetune-from-model", checkpoint),
    ):
        with pytest.raises(ValueError, match="^the source dictionary, dict.src.txt, is not .*-preprocess --srcdict"):
            run_here(command, *flags)
    assert not list(tmp_path.glob("run/*.pt"))


# files that a run was started from


def write_embeddings(path):
    words = [line.split()[0] for line in (PAIR_DATA / "dict.src.txt").read_text().splitlines()]
    rows = [" ".join([word, *(f"0.{n}{d}" for d in range(8))]) for n, word in enumerate(words)]
    path.write_text("\n".join([f"{len(words)} 8", *rows]) + "\n")


@pytest.mark.parametrize("model", [TRANSFORMER, ["--arch", "lstm", "--encoder-embed-dim=8"]], ids=["ours", "fairseq's"])
def test_a_finished_model_needs_no_file_of_embeddings(model, run_here, tmp_path):
    file, folder = tmp_path / "embeddings.txt", tmp_path / "trained"
    write_embeddings(file)
    training = [*PAIRS, *model, "--encoder-embed-path", file, "--save-dir", folder]
    run_here(fairseq_cli.train, *training, "--max-update", 1)
    file.unlink()
    decode = [PAIR_DATA, *FAIRSEQ_FLAGS, "--gen-subset", "test", "--path", folder / "checkpoint_last.pt"]
    assert "H-0" in run_here(fairseq_cli.generate, *decode)
    load_with_task(folder / "checkpoint_last.pt", PAIR_DATA, kind=TranslationTask)


def test_a_run_that_starts_anew_still_needs_its_file(run_here, tmp_path):
    with pytest.raises((ValueError, OSError), match="embeddings.txt"):
        flags = ["--encoder-embed-path", tmp_path / "embeddings.txt", "--save-dir", tmp_path / "trained"]
        run_here(fairseq_cli.train, *PAIRS, *TRANSFORMER, *flags, "--max-update", 1)


# a checkpoint that is missing


def test_a_missing_checkpoint_is_refused_and_fairseq_alone_begins_anew(data, tmp_path, run_here, monkeypatch):
    arguments = training_arguments(data, tmp_path / "runs", "--max-update", 1, "--restore-file", tmp_path / "none.pt")
    with pytest.raises(ValueError, match=f"--restore-file {tmp_path}/none.pt does not exist"):
        run_here(fairseq_cli.train, *arguments)
    assert not list(tmp_path.glob("runs/*.pt"))
    monkeypatch.setattr(checkpoint_utils, "load_checkpoint", inspect.unwrap(checkpoint_utils.load_checkpoint))
    assert "No existing checkpoint found" in run_here(fairseq_cli.train, *arguments)
    assert (tmp_path / "runs/checkpoint_last.pt").is_file()


# fine-tuning of a translator


RESETS = ["--reset-optimizer", "--reset-dataloader", "--reset-meters", "--reset-lr-scheduler"]
LOWER_EXPERTS = "decoder.output.latent_projections.0.weight"


@pytest.mark.parametrize("start, flags", [("--finetune-from-model", []), ("--restore-file", RESETS)])
def test_fine_tuning_has_no_second_warmup(start, flags, translator, pair_data, run_here, tmp_path):
    checkpoint = translator / "checkpoint_last.pt"
    flags = ["--max-update", 3, "--disable-validation", start, checkpoint, *flags]
    log = run_here(fairseq_cli.train, *translator_arguments(pair_data, tmp_path, *flags))
    before, after = load(checkpoint), load(tmp_path / "checkpoint_last.pt")
    assert f"oaded checkpoint {checkpoint}" in log and updates_of(after) == 3
    assert before["model"]["decoder.output.warmed_up"] == after["model"]["decoder.output.warmed_up"] == 1
    assert not torch.equal(before["model"][LOWER_EXPERTS], after["model"][LOWER_EXPERTS])


def test_an_average_starts_from_a_checkpoint_without_one_unlike_by_fairseq_alone(
    translator, pair_data, run_here, tmp_path, monkeypatch
):
    start = ["--finetune-from-model", translator / "checkpoint_last.pt", "--store-ema", "--ema-decay", 0.75]
    flags = translator_arguments(pair_data, tmp_path, *start, "--ema-fp32", "--max-update", 1, "--disable-validation")
    run_here(fairseq_cli.train, *flags)
    before, after = load(start[1])["model"], load(tmp_path / "checkpoint_last.pt")
    expected = 0.75 * before[LOWER_EXPERTS] + 0.25 * after["model"][LOWER_EXPERTS]
    assert not torch.equal(before[LOWER_EXPERTS], expected)
    for average in ("ema", "ema_fp32_params"):
        torch.testing.assert_close(after["extra_state"][average][LOWER_EXPERTS], expected)
    monkeypatch.setattr(Trainer, "load_checkpoint", inspect.unwrap(Trainer.load_checkpoint))
    with pytest.raises(KeyError, match="model"):
        run_here(fairseq_cli.train, *flags, "--save-dir", tmp_path / "alone")


# fine-tuning on another corpus, by the command


@pytest.fixture(scope="module")
def other_pairs(pair_data, tmp_path_factory):
    """Longer sentences of few words: with the vocabulary of the translator, and with their own."""
    text = tmp_path_factory.mktemp("other pairs")
    generator = random.Random(2)
    for split, size in {"train": 100, "valid": 20, "test": 1}.items():
        sources = [" ".join(generator.choices("abc", k=generator.randint(8, 12))) for _ in range(size)]
        (text / f"{split}.src").write_text("".join(f"{line}\n" for line in sources))
        (text / f"{split}.tgt").write_text("".join(f"{translate(line)}\n" for line in sources))
    dictionaries = ["--srcdict", pair_data / "dict.src.txt", "--tgtdict", pair_data / "dict.tgt.txt"]
    return preprocess_pairs(text, text / "same words", *dictionaries), preprocess_pairs(text, text / "own words")


def test_a_translator_is_fine_tuned_on_another_corpus(other_pairs, translator, tmp_path):
    command = ["fine-tune", other_pairs[0], "--path", translator, "--save-dir", tmp_path / "tuned", "--cpu"]
    killed = succeed("fairseq_plugins", *command, "--max-update", 5)
    perplexities = [float(figure) for figure in re.findall(r"valid perplexity ([\d.]+)", killed.stdout)]
    flags = ["--dropout", 0, "--max-epoch", 3, "--max-update", 0]
    refused = run("fairseq_plugins", *command, *flags)
    assert refused.returncode == 2 and "with --dropout=0.1" in refused.stderr.replace("--dropout 0.1", "--dropout=0.1")
    resumed = succeed("fairseq_plugins", *command, *flags[2:])
    assert "Loaded checkpoint" in resumed.stdout
    perplexities += [float(figure) for figure in re.findall(r"valid perplexity ([\d.]+)", resumed.stdout)]
    start, after_five, start_again, tuned = perplexities
    assert start == start_again > after_five > tuned and tuned < 0.9 * start
    record = json.loads((tmp_path / "tuned/run.json").read_text())
    assert record["status"] == "finished"
    assert record["started_from"] == [file_digest(translator / "checkpoint_best.pt")]
    saved, before = (load(folder / "checkpoint_best.pt")["cfg"] for folder in (tmp_path / "tuned", translator))
    assert saved["optimization"]["lr"] == [pytest.approx(before["optimization"]["lr"][0] / 10)]
    changed = {"lr", "max_epoch", "patience", "data", "save_dir", "finetune_from_model", "log_interval", "num_workers"}
    changed |= {"user_dir", "batch_size_valid"}
    differing = {name for name, value in vars(before["model"]).items() if getattr(saved["model"], name) != value}
    assert differing <= changed, differing


def test_a_corpus_with_a_vocabulary_of_its_own_is_refused(other_pairs, translator, tmp_path, refuse):
    own, moved = other_pairs[1], load(translator / "checkpoint_best.pt")
    moved["cfg"]["task"]["data"] = "no longer there"
    torch.save(moved, tmp_path / "moved.pt")
    for path, told in (
        (translator, "has another vocabulary than .*: prepare your corpus with --source-dict .*/dict.src.txt'? "),
        (tmp_path / "moved.pt", "the source dictionary, .* is not the one that .* by --codes, --source-dict and --tar"),
    ):
        line = refuse("fine-tune", own, "--path", path, "--save-dir", tmp_path / "x", "--cpu")
        assert re.search(told, line), line
    assert not (tmp_path / "x").exists()


def test_the_start_is_measured_on_the_pair_of_languages_that_is_given(pair_data, other_pairs, translator, tmp_path):
    """The folder has two pairs, and a rate near zero learns nothing."""
    data = copy_data(pair_data, tmp_path / "data")
    for path in (other_pairs[0]).glob("*.*"):
        if path.name not in ("dict.tgt.txt", "digests.json"):
            shutil.copy(path, data / path.name.replace("src", "other"))
    command = ["fine-tune", data, "--path", translator, "--save-dir", tmp_path / "tuned", "--cpu", "-s", "other"]
    printed = succeed("fairseq_plugins", *command, "--lr", 1e-9, "--max-update", 1).stdout
    start, tuned = (float(figure) for figure in re.findall(r"valid perplexity ([\d.]+)", printed))
    assert start == pytest.approx(tuned, rel=1e-3)


def test_a_model_of_fairseq_is_fine_tuned_with_its_flags(run_here, tmp_path):
    """fairseq keeps the flags of its Transformer in another form."""
    sizes = ["--decoder-embed-dim=8", "--decoder-ffn-embed-dim=16", "--decoder-layers=1", "--decoder-attention-heads=2"]
    flags = [
        "--arch=transformer_lm_gpt",
        "--task=language_modeling",
        "--tokens-per-sample=20",
        "--clip-norm=0.5",
        *sizes,
    ]
    run_here(fairseq_cli.train, LM_DATA, *flags, *TRAINING, "--max-update", 1, "--save-dir", tmp_path)
    found = as_arguments(fine_tuning.flags_of_run(str(tmp_path / "checkpoint_last.pt")))
    assert {*flags, "--optimizer=adam", "--criterion=cross_entropy", "--lr=0.0002", "--batch-size=10"} <= {*found}
    options.parse_args_and_arch(options.get_training_parser(), input_args=[str(LM_DATA), *found])
