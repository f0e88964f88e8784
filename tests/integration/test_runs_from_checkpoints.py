"""Runs that start from a checkpoint of another run: with other flags, missing, fine-tuned."""

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
from fairseq.trainer import Trainer
from paths import SMALL_MODELS
from translation_commands import FAIRSEQ_FLAGS, preprocess_pairs, translate, translator_arguments

import fairseq_plugins  # noqa: F401
from fairseq_plugins.evaluation.checkpoints import load_translation_models
from fairseq_plugins.files import file_digest
from fairseq_plugins.models.presets import as_arguments
from fairseq_plugins.options import UserError
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


@pytest.fixture(scope="module")
def transformer(made_once):
    """The checkpoint of a Transformer after one update."""

    def make(folder):
        succeed("fairseq_cli.train", *PAIRS, *TRANSFORMER, "--max-update", 1, "--save-dir", folder)

    return made_once("transformer after one update", make) / "checkpoint_last.pt"


@pytest.mark.parametrize(
    "start, flags, told",
    [
        ("--restore-file", "--encoder-attention-heads 4", "with --encoder-attention-heads 2, this model has 4"),
        ("--finetune-from-model", "--activation-fn gelu", "with --activation-fn relu, this model has gelu"),
    ],
)
def test_a_transformer_with_other_settings_is_refused(start, flags, told, transformer, run_here, tmp_path):
    """They change the function and no weight's shape."""
    save = ["--save-dir", tmp_path, start, transformer, "--max-update", 2]
    with pytest.raises(ValueError, match=f"^{re.escape(f'{transformer} was trained {told}')}.*: give the --arch"):
        run_here(fairseq_cli.train, *PAIRS, *TRANSFORMER, *save, *flags.split())
    assert not list(tmp_path.glob("*.pt"))


@pytest.mark.parametrize("start", ["--restore-file", "--finetune-from-model"])
def test_a_transformer_of_another_size_is_refused_by_its_first_weight(start, transformer, run_here, tmp_path):
    save = ["--save-dir", tmp_path, start, transformer, "--max-update", 2]
    message = (
        f"{transformer} does not fit the model that the flags .* make: give the flags and the data of its training"
    )
    with pytest.raises(UserError, match=rf"^{message}.*\(size mismatch for encoder.layers.0.fc1.weight"):
        run_here(fairseq_cli.train, *PAIRS, *TRANSFORMER, *save, "--encoder-ffn-embed-dim", 32)


def test_flags_of_training_may_be_others(transformer, run_here, tmp_path):
    assert load(transformer)["extra_state"]["fairseq_plugins"] == fairseq_plugins.__version__
    others = ["--dropout", 0.3, "--attention-dropout", 0.1, "--max-source-positions", 500, "--checkpoint-activations"]
    save = ["--save-dir", tmp_path, "--finetune-from-model", transformer, "--max-update", 1]
    run_here(fairseq_cli.train, *PAIRS, *TRANSFORMER, *save, *others, "--encoder-layerdrop", 0.1)
    assert (tmp_path / "checkpoint_last.pt").exists()


def test_other_settings_of_fairseqs_models_are_refused(run_here, tmp_path):
    flags = [LM_DATA, "--task", "language_modeling", "--arch", "transformer_lm", "--tokens-per-sample", 10, *TRAINING]
    flags += ["--save-dir", tmp_path, *(flag for flag in SIZES if flag.startswith("--decoder"))]
    run_here(fairseq_cli.train, *flags, "--max-update", 1)
    before = (tmp_path / "checkpoint_last.pt").read_bytes()
    assert "fairseq_plugins" not in load(tmp_path / "checkpoint_last.pt")["extra_state"]
    for other, said in (
        ("--activation-fn=gelu", "--activation-fn relu, this"),
        ("--decoder-attention-heads=4", "2, this"),
    ):
        with pytest.raises(ValueError, match=said):
            run_here(fairseq_cli.train, *flags, other, "--max-update", 2)
        assert (tmp_path / "checkpoint_last.pt").read_bytes() == before
    run_here(fairseq_cli.train, *flags, "--dropout", 0.3, "--max-update", 2)
    assert (tmp_path / "checkpoint_last.pt").read_bytes() != before


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
    assert len(load_translation_models([folder / "checkpoint_last.pt"], PAIR_DATA)) == 1


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


SHORT = ["--max-update", 3, "--disable-validation"]
RESETS = ["--reset-optimizer", "--reset-dataloader", "--reset-meters", "--reset-lr-scheduler"]
LOWER_EXPERTS = "decoder.output.latent_projections.0.weight"


@pytest.fixture
def fine_tune(pair_data, run_here, tmp_path):
    """``fine_tune(checkpoint, *flags)``: parameters before and after three updates of a DOC model."""

    def fine_tune(checkpoint, *flags):
        arguments = translator_arguments(pair_data, tmp_path / "tuned", *SHORT, *flags)
        assert f"oaded checkpoint {checkpoint}" in run_here(fairseq_cli.train, *arguments)
        tuned = load(tmp_path / "tuned/checkpoint_last.pt")
        assert updates_of(tuned) == SHORT[1]
        before, after = load(checkpoint)["model"], tuned["model"]
        assert not torch.equal(before[LOWER_EXPERTS], after[LOWER_EXPERTS])
        return before, after

    return fine_tune


@pytest.mark.parametrize("start, flags", [("--finetune-from-model", []), ("--restore-file", RESETS)])
def test_fine_tuning_has_no_second_warmup(start, flags, fine_tune, translator):
    checkpoint = translator / "checkpoint_last.pt"
    before, after = fine_tune(checkpoint, start, checkpoint, *flags)
    assert before["decoder.output.warmed_up"] == after["decoder.output.warmed_up"] == 1


def test_a_checkpoint_of_a_warmup_is_trained_on_without_one(fine_tune, pair_data, run_here, tmp_path):
    run_here(fairseq_cli.train, *translator_arguments(pair_data, tmp_path / "first", *SHORT))
    checkpoint = tmp_path / "first/checkpoint_last.pt"
    before, after = fine_tune(checkpoint, "--finetune-from-model", checkpoint, "--expert-warmup", 0)
    assert (before["decoder.output.warmed_up"], after["decoder.output.warmed_up"]) == (0, 1)


def test_averages_of_fairseq_hold_every_parameter_and_follow_the_warmup(pair_data, run_here, tmp_path):
    flags = ["--store-ema", "--ema-decay", 0.5, "--max-update", 6, "--disable-validation", "--expert-warmup", 2]
    run_here(fairseq_cli.train, *translator_arguments(pair_data, tmp_path, *flags))
    checkpoint = load(tmp_path / "checkpoint_last.pt")
    average = checkpoint["extra_state"]["ema"]
    assert average.keys() == checkpoint["model"].keys()
    for name, value in average.items():
        assert value.isfinite().all() and (
            name.endswith(("warmed_up", "_name", "_text", "digest", "chosen"))
            or not torch.equal(value, checkpoint["model"][name])
        )
    assert 0.5 < average["decoder.output.warmed_up"] < 1


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


@pytest.mark.parametrize(
    "corpus, path, told",
    [
        (
            "own",
            "translator",
            "has another vocabulary than .*: prepare your corpus with --source-dict .*/dict.src.txt'? ",
        ),
        (
            "own",
            "moved",
            "the source dictionary, .* is not the one that .* by --codes, --source-dict and --target-d",
        ),
        ("same", "language model", "dict.txt does not exist: .* of one side.*; it holds sentence pairs"),
        ("stories", "translator", "holds no sentence pairs|has no dictionaries of src and tgt"),
        ("same", "damaged", "damaged.pt is no checkpoint or was cut short"),
        ("same", "nothing.pt", "nothing.pt does not exist"),
    ],
)
def test_what_cannot_be_fine_tuned_is_refused(corpus, path, told, other_pairs, data, translator, tmp_path, refuse):
    checkpoint = translator / "checkpoint_best.pt"
    paths = {"translator": checkpoint, "language model": SMALL_MODELS / "lstm_lm_doc.pt"}
    if path == "damaged":
        paths[path] = tmp_path / "damaged.pt"
        paths[path].write_bytes(checkpoint.read_bytes()[:5000])
    if path == "moved":
        paths[path], state = tmp_path / "moved.pt", torch.load(checkpoint)
        state["cfg"]["task"]["data"] = "no longer there"
        torch.save(state, paths[path])
    folder = {"same": other_pairs[0], "own": other_pairs[1], "stories": data}[corpus]
    line = refuse("fine-tune", folder, "--path", paths.get(path, path), "--save-dir", tmp_path / "x", "--cpu")
    assert re.search(told, line), line
    assert not (tmp_path / "x").exists()


def test_a_model_of_fairseq_is_fine_tuned_with_its_flags(run_here, tmp_path, monkeypatch):
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


NOT_KEPT = {
    *("data", "user_dir", "cpu", "num_workers", "log_format", "log_interval", "save_dir", "seed", "patience"),
    *("max_epoch", "max_update", "no_epoch_checkpoints", "no_save_optimizer_state", "force_anneal", "lr_shrink"),
}


def test_flags_of_other_models_are_those_of_their_training():
    """The command line of a run gives the flags that it was trained with, whatever the model."""
    for name in ("lstm_lm_doc", "mmlstm_lm_mos", "lstm_encdec_doc"):
        path = SMALL_MODELS / f"{name}.pt"
        flags = as_arguments(fine_tuning.flags_of_run(str(path)))
        arguments = [str(SMALL_MODELS / "data"), *flags, "--lr-scheduler=fixed"]
        found = vars(options.parse_args_and_arch(options.get_training_parser(), input_args=arguments))
        saved = vars(load(path)["cfg"]["model"])
        assert found.pop("lr") == [pytest.approx(saved.pop("lr")[0] / 10)]
        differing = {one for one in saved.keys() & found.keys() if str(saved[one]) != str(found[one])}
        assert differing <= NOT_KEPT and len(saved) > 100
