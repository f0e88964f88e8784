"""Training flags of a paper's setting, for a command line."""

import pytest

from fairseq_plugins.cli.preset_flags import PresetFlags


def lines_of(capsys, *arguments):
    PresetFlags().main(arguments)
    return set(capsys.readouterr().out.splitlines())


def test_flags_of_a_preset(capsys):
    lines = lines_of(capsys, "lstm_lm_mos_ptb")
    assert {"--arch=lstm_lm_mos_ptb", "--lr=20", "--batch-size=12", "--max-window=110"} <= lines
    tuned = lines_of(capsys, "lstm_lm_mos_ptb", "--fine-tune")
    assert {"--lr=25", "--averaging=immediate"} <= tuned and "--lr=20" not in tuned


def test_preset_without_training_flags_is_refused(capsys):
    with pytest.raises(SystemExit) as error:
        PresetFlags().main(["lstm_lm_zaremba_medium"])
    assert error.value.code == 2
    assert "lstm_lm_awd_ptb" in capsys.readouterr().err


def test_fine_tuning_that_the_paper_lacks_is_refused(capsys):
    with pytest.raises(SystemExit) as error:
        PresetFlags().main(["lstm_lm_zaremba_large_ptb", "--fine-tune"])
    assert error.value.code == 2
    assert "--arch lstm_lm_zaremba_large_ptb has no fine-tuning of its own" in capsys.readouterr().err
