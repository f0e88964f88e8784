"""Training a translation model on from a checkpoint of another setting."""

import pytest
import torch
from commands import load
from translation_commands import DOC, train_to_the_end

pytestmark = pytest.mark.slow

WARMUP = DOC
NO_WARMUP = (*DOC, "--expert-warmup", 0)
SHORT = ["--max-update", 3, "--disable-validation"]
RESETS = ["--reset-optimizer", "--reset-dataloader", "--reset-meters", "--reset-lr-scheduler"]
FINE_TUNE = {
    "finetune": lambda checkpoint: ["--finetune-from-model", checkpoint],
    "reset": lambda checkpoint: ["--restore-file", checkpoint, *RESETS],
}


def fine_tune(data, save_dir, checkpoint, model, how="finetune"):
    """Parameters before and after three updates."""
    log = train_to_the_end(data, save_dir, *SHORT, *FINE_TUNE[how](checkpoint), model=model)
    assert f"oaded checkpoint {checkpoint}" in log
    tuned = load(save_dir / "checkpoint_last.pt")
    assert tuned["optimizer_history"][-1]["num_updates"] == SHORT[1]
    return load(checkpoint)["model"], tuned["model"]


def lower_experts_changed(before, after):
    name = "decoder.output.latents.0.weight"
    return not torch.equal(before[name], after[name])


@pytest.mark.parametrize("how, model", [("finetune", WARMUP), ("finetune", NO_WARMUP), ("reset", WARMUP)])
def test_fine_tuning_has_no_second_warmup(how, model, pair_data, translator, tmp_path):
    before, after = fine_tune(pair_data, tmp_path, translator / "checkpoint_last.pt", model, how)
    assert before["decoder.output.warmed_up"] == after["decoder.output.warmed_up"] == 1
    assert lower_experts_changed(before, after)


@pytest.mark.parametrize("first, then, num_warmed_up", [(NO_WARMUP, WARMUP, (1, 1)), (WARMUP, NO_WARMUP, (0, 1))])
def test_a_checkpoint_of_the_other_setting_is_trained_on(first, then, num_warmed_up, pair_data, tmp_path):
    train_to_the_end(pair_data, tmp_path / "first", *SHORT, model=first)
    before, after = fine_tune(pair_data, tmp_path / "then", tmp_path / "first/checkpoint_last.pt", then)
    assert (before["decoder.output.warmed_up"], after["decoder.output.warmed_up"]) == num_warmed_up
    assert lower_experts_changed(before, after)


def test_averages_of_fairseq_hold_every_parameter_and_follow_the_warmup(pair_data, tmp_path):
    flags = ["--store-ema", "--ema-decay", 0.5, "--max-update", 6, "--disable-validation"]
    train_to_the_end(pair_data, tmp_path, *flags, model=["--arch", "lstm_encdec_doc", "--expert-warmup", 2])
    checkpoint = load(tmp_path / "checkpoint_last.pt")
    average = checkpoint["extra_state"]["ema"]
    assert average.keys() == checkpoint["model"].keys()
    for name, value in average.items():
        assert value.isfinite().all() and (
            name.endswith(("warmed_up", "_name", "_text", "digest", "chosen"))
            or not torch.equal(value, checkpoint["model"][name])
        )
    assert 0.5 < average["decoder.output.warmed_up"] < 1
