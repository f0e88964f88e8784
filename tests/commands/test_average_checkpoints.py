"""average, run in this process on checkpoints of earlier versions and altered copies of them."""

import logging
import math
import re
import shutil

import pytest
import torch
from paths import SMALL_MODELS
from typed_commands import refused, type_command

from fairseq_plugins.evaluation.checkpoints import load_with_task

ENCDEC = SMALL_MODELS / "lstm_encdec_doc.pt"


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.WARNING)  # commands do so, too; here the level before is restored


@pytest.fixture
def altered(tmp_path):
    """``altered(name, change=None, source=ENCDEC)``: a copy of other weights, of the next update."""
    count = 0

    def write(name, change=None, source=ENCDEC):
        nonlocal count
        count += 1
        state = torch.load(source)
        generator = torch.Generator().manual_seed(count)
        for weight in state["model"].values():
            if (weight != weight.round()).any():
                weight += torch.randn(weight.shape, generator=generator) / 10
        state["optimizer_history"][-1]["num_updates"] += 1000 * count
        if change is not None:
            change(state)
        (tmp_path / name).parent.mkdir(exist_ok=True)
        torch.save(state, tmp_path / name)
        return tmp_path / name

    return write


@pytest.fixture
def average(tmp_path):
    """``average(*paths)``: the checkpoint with their mean."""

    def run(*paths):
        type_command("average", ["--path", *paths, "--out", tmp_path / "the mean.pt"])
        return torch.load(tmp_path / "the mean.pt", weights_only=True)

    return run


@pytest.fixture
def refusal(capsys):
    """``refusal(*arguments)``: the line by which ``average`` refuses them."""
    return lambda *arguments: refused("average", arguments, capsys)


def test_held_columns_keep_their_length(altered, average):
    name, length = "decoder.embedding.weight", 3.0

    def hold(state):
        state["cfg"]["model"].column_norm = length
        weight = state["model"][name]
        weight *= length / weight.norm(dim=0)

    paths = [altered(f"{n}.pt", hold, source=SMALL_MODELS / "lstm_lm_doc.pt") for n in range(3)]
    mean, parts = average(*paths)["model"], [torch.load(path)["model"] for path in paths]
    direction = sum(part[name] for part in parts)
    torch.testing.assert_close(mean[name], direction * length / direction.norm(dim=0), rtol=1e-5, atol=1e-6)
    other = "decoder.output.prior.weight"
    torch.testing.assert_close(mean[other], sum(part[other] for part in parts) / 3, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("arch", ["lstm_encdec_doc", "lstm_lm_doc", "transformer_drill"])
def test_the_weights_are_the_mean_and_the_flags_are_kept(arch, altered, average, tmp_path, capsys):
    source = SMALL_MODELS / f"{arch}.pt"
    others = [altered(f"{n}.pt", source=source) for n in range(2)]
    mean = average(others[1], source, others[0])
    assert capsys.readouterr().out.startswith("mean of 3 checkpoints, of updates ")
    states = [torch.load(path) for path in (source, *others)]
    for name, weight in mean["model"].items():
        expected = sum(state["model"][name].double() for state in states) / 3
        torch.testing.assert_close(weight.double(), expected, rtol=1e-6, atol=1e-7)
    latest = states[-1]
    assert list(mean["model"]) == list(latest["model"]) and mean["cfg"] == latest["cfg"]
    assert mean["optimizer_history"] == latest["optimizer_history"] and "last_optimizer_state" not in mean
    assert [path for path, _ in mean["averaged_checkpoints"]] == [str(path) for path in (source, *others)]
    data = SMALL_MODELS / "data" / ("lm" if arch == "lstm_lm_doc" else "translation")
    model, *_ = load_with_task(tmp_path / "the mean.pt", data)
    assert all(torch.equal(parameter, mean["model"][name]) for name, parameter in model.named_parameters())


@pytest.mark.parametrize(
    "dtype, values", [(torch.float32, [2.0**22 + 0.5, 0.2, 0.2]), (torch.float16, [2.0**9 + 0.5, 0.2, 0.2])]
)
def test_a_mean_is_rounded_once_to_the_precision_of_the_weights(dtype, values, altered, average):
    name = "decoder.embedding.weight"

    def filled(value):
        return lambda state: state["model"].update({name: torch.full_like(state["model"][name], value, dtype=dtype)})

    mean = average(*(altered(f"{n}.pt", filled(value)) for n, value in enumerate(values)))["model"][name]
    assert mean.dtype == dtype and mean[0, 0] == (torch.tensor(values, dtype=dtype).double().sum() / 3).to(dtype)


def test_how_far_the_training_has_come_is_that_of_the_latest(altered, average):
    def progress(warmed_up):
        return lambda state: state["model"].update({"decoder.output.warmed_up": torch.tensor(warmed_up)})

    paths = [altered(f"{n}.pt", progress(warmed_up)) for n, warmed_up in enumerate([0.0, 0.0, 1.0])]
    assert average(*paths[::-1])["model"]["decoder.output.warmed_up"] == 1


def test_shared_weights_stay_one_tensor_and_averages_of_the_training_are_left_out(altered, average):
    def change(state):
        state["model"]["again"] = state["model"]["decoder.embedding.weight"]
        state["extra_state"].update(ema=dict(state["model"]), ema_fp32_params=dict(state["model"]))

    mean = average(altered("0.pt", change), altered("1.pt", change))
    assert mean["model"]["again"].data_ptr() == mean["model"]["decoder.embedding.weight"].data_ptr()
    assert "train_iterator" in mean["extra_state"] and not {"ema", "ema_fp32_params"} & set(mean["extra_state"])


def test_the_last_epochs_of_a_folder(altered, tmp_path, refusal):
    folder = altered("run/checkpoint9.pt").parent
    for name in ("checkpoint10.pt", "checkpoint11.pt", "checkpoint_best.pt", "checkpoint_11_4000.pt"):
        altered(f"run/{name}")
    out = tmp_path / "mean.pt"
    type_command("average", ["--path", folder, "--last", 2, "--out", out])
    expected = [str(folder / f"checkpoint{epoch}.pt") for epoch in (10, 11)]
    assert [path for path, _ in torch.load(out)["averaged_checkpoints"]] == expected
    told = refusal("--path", folder, "--last", 4, "--out", out)
    assert "run holds 3 epoch checkpoints, fewer than 4: train with --keep-last-epochs 4 and without" in told
    assert "argument --last: 1: give a whole number of at least 2" in refusal(
        "--path", folder, "--last", 1, "--out", out
    )
    assert "is no folder: --last takes" in refusal("--path", ENCDEC, "--last", 2, "--out", out)
    told = refusal("--path", folder, folder, "--last", 2, "--out", out)
    assert "--last takes one --save-dir after --path; there are 2 paths" in told


EMBEDDING, DIGEST = "decoder.embedding.weight", "decoder.vocabulary.digest"
ONE_NAN = torch.ones(16, 8)
ONE_NAN[3, 1] = math.nan


@pytest.mark.parametrize(
    "part, changes, told",
    [
        ("model", {EMBEDDING: ONE_NAN}, f"1.pt: .* {EMBEDDING} holds inf or NaN, .*: take an"),
        (
            "model",
            {EMBEDDING: torch.ones(32, 8)},
            f"1.pt holds another model than .*0.pt, they differ in {EMBEDDING}: ",
        ),
        ("model", {DIGEST: 2 * torch.ones(4)}, "1.pt and .*0.pt differ in vocabularies: give checkpoints of one run"),
        ("flags", {"rnn_cell": "variational"}, "1.pt was trained with --rnn-cell variational, .*0.pt has lstm: give "),
        ("flags", {"encoder_merge": "layer"}, "1.pt was trained with --encoder-merge layer, .*0.pt has top: give che"),
        ("task", {"source_lang": "tgt"}, "1.pt was trained with --source-lang tgt, .*0.pt with --source-lang None: gi"),
        ("common", {"seed": 77}, "1.pt was trained with --seed 77, .*0.pt with --seed"),
    ],
)
def test_what_has_no_mean_is_refused_and_nothing_is_written(part, changes, told, altered, tmp_path, refusal):
    def with_digest(state):
        state["model"][DIGEST] = torch.ones(4)

    def change(state):
        with_digest(state)
        parts = {**state["cfg"], "model": state["model"], "flags": vars(state["cfg"]["model"])}
        parts[part].update(changes)

    paths, out = [altered("0.pt", with_digest), altered("1.pt", change)], tmp_path / "mean.pt"
    out.write_text("as before")
    before = sorted(tmp_path.iterdir())
    assert re.search(told, refusal("--path", *paths, "--out", out))
    assert out.read_text() == "as before" and sorted(tmp_path.iterdir()) == before


def test_a_checkpoint_counts_once_and_is_not_written_over(altered, tmp_path, refusal):
    first, out = altered("first.pt"), tmp_path / "mean.pt"
    shutil.copy(first, tmp_path / "copy.pt")
    told = refusal("--path", first, tmp_path / "copy.pt", "--out", out)
    assert "copy.pt and " in told and " are both of update " in told and told.endswith(": give one of them\n")
    assert "give two or more" in refusal("--path", first, "--out", out)
    assert "is read by this command: give another name" in refusal("--path", first, ENCDEC, "--out", first)
    assert "none.pt does not exist" in refusal("--path", first, tmp_path / "none.pt", "--out", out)
    flipped = bytearray(first.read_bytes())
    flipped[len(flipped) // 2] ^= 1
    (tmp_path / "flipped.pt").write_bytes(flipped)
    assert "flipped.pt is damaged" in refusal("--path", first, tmp_path / "flipped.pt", "--out", out)


def test_a_mean_takes_the_place_of_a_mean_and_of_no_checkpoint_of_a_run(altered, average, refusal):
    paths = [altered(f"{number}.pt") for number in range(2)]
    for name in ("checkpoint_best.pt", "checkpoint_last.pt", "checkpoint3.pt"):
        saved = altered(f"run/{name}")
        before = saved.read_bytes()
        told = refusal("--path", *paths, "--out", saved)
        assert f"{name} is a checkpoint of a run: give another name, such as checkpoint_mean.pt" in told
        assert saved.read_bytes() == before
    for _ in range(2):
        average(*paths)


def test_a_mean_of_means_is_refused(altered, average, tmp_path, refusal):
    parts = [altered(f"{number}.pt") for number in (1, 2, 3)]
    average(*parts[:2])
    told = refusal("--path", tmp_path / "the mean.pt", parts[2], "--out", tmp_path / "both.pt")
    remedy = f"its parts would weigh less: give the parts instead: {parts[0]} {parts[1]}\n"
    assert f"the mean.pt is itself a mean, and {remedy}" in told and not (tmp_path / "both.pt").exists()
