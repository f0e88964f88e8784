"""Fine-tuning in rounds, with stubs in place of training and evaluation."""

import math
import sys

import pytest
import torch
from fairseq import options
from paths import SMALL_MODELS
from typed_commands import type_command

from fairseq_plugins.models.checkpoints import check_checkpoints
from fairseq_plugins.models.presets import ARCHITECTURES, as_arguments
from fairseq_plugins.own_parts import user_dir
from fairseq_plugins.recipes import fine_tuning, training

ARCH = "lstm_lm_awd_ptb"


class Rounds:
    """Trains nothing: the model of a round is a text, and its figure is the next of ``nlls``."""

    def __init__(self):
        self.commands = []
        self.nlls = {"start.pt": 5.0}
        self.next_nlls = []
        self.status = 0

    def run_logged(self, command, *, log):
        assert log.parent.is_dir()
        self.commands.append((command, log))
        if self.status == 0:
            best = log.parent / "checkpoint_best.pt"
            best.write_text(f"model {len(self.commands)}")
            self.nlls[str(best)] = self.next_nlls.pop(0)
        return self.status

    def valid_nll(self, path, *, data, device):
        assert (data, device) == ("my data", "cpu")
        if path not in self.nlls:
            check_checkpoints([path])
        return self.nlls[path]


@pytest.fixture
def rounds(monkeypatch, tmp_path):
    rounds = Rounds()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "start.pt").write_text("the start")
    (tmp_path / "my data").mkdir()
    monkeypatch.setattr(training, "run_logged", rounds.run_logged)
    monkeypatch.setattr(fine_tuning, "valid_nll", rounds.valid_nll)
    return rounds


def fine_tune(*more, arch=ARCH, path="start.pt"):
    rounds = [] if arch is None else ["--arch", arch]
    type_command("fine-tune", ["my data", *rounds, "--path", path, "--save-dir", "fin", "--cpu", *more])


def refused(capsys, *more, **changed):
    with pytest.raises(SystemExit) as end:
        fine_tune(*more, **changed)
    error = capsys.readouterr().err
    assert end.value.code == 2 and len(error.splitlines()) == 1
    return error


def test_a_second_checkpoint_is_refused_before_the_start_is_measured(rounds, monkeypatch, capsys):
    monkeypatch.setattr(fine_tuning, "valid_nll", lambda *_, **__: pytest.fail("the start was measured"))
    assert "other.pt is neither a flag nor the value of one" in refused(capsys, "other.pt")


def test_no_round_is_stopped_by_the_clock(rounds, capsys):
    assert "--stop-time-hours: the steps after the training" in refused(capsys, "--stop-time-hours=1")
    assert not rounds.commands


def test_rounds_go_on_from_the_best_until_one_brings_no_gain(rounds, tmp_path, capsys):
    rounds.next_nlls = [4.5, 4.25, 4.25, 1.0]
    fine_tune("--lr", "3")
    starts = [argument for command, _ in rounds.commands for argument in command if "finetune-from-model" in argument]
    first, second = "fin/round1/checkpoint_best.pt", "fin/round2/checkpoint_best.pt"
    assert starts == [f"--finetune-from-model={path}" for path in ("start.pt", first, second)]
    assert [str(log) for _, log in rounds.commands] == [f"fin/round{number}/train.log" for number in (1, 2, 3)]
    assert all(command[-3:] == ["--cpu", "--lr", "3"] for command, _ in rounds.commands)
    assert capsys.readouterr().out.splitlines() == [
        "start: valid NLL 5.0 of start.pt",
        "round 1: valid NLL 4.5, best so far 5.0",
        "round 2: valid NLL 4.25, best so far 4.5",
        "round 3: valid NLL 4.25, best so far 4.25",
        f"valid NLL 4.25: fin/checkpoint_fin.pt (from {second})",
    ]
    written = sorted(path.name for path in (tmp_path / "fin").iterdir())
    assert written == ["checkpoint_fin.pt", "round1", "round2", "round3"]
    assert (tmp_path / "fin/checkpoint_fin.pt").read_text() == "model 2"


@pytest.mark.parametrize("nll", [5.5, math.nan])
def test_a_start_that_no_round_betters_is_the_result(nll, rounds, tmp_path):
    rounds.next_nlls = [nll]
    fine_tune()
    assert (tmp_path / "fin/checkpoint_fin.pt").read_text() == "the start"


def test_rounds_can_be_limited(rounds, tmp_path):
    rounds.next_nlls = [4.5, 4.0]
    fine_tune("--rounds", "1")
    assert len(rounds.commands) == 1 and (tmp_path / "fin/checkpoint_fin.pt").read_text() == "model 1"


def test_a_failed_training_ends_all_and_another_run_resumes(rounds, tmp_path):
    rounds.status = 143
    with pytest.raises(SystemExit) as end:
        fine_tune()
    assert end.value.code == 143 and not (tmp_path / "fin/checkpoint_fin.pt").exists()
    rounds.status, rounds.next_nlls = 0, [4.5, 4.75]
    fine_tune()
    folders = [log.parent.name for _, log in rounds.commands]
    assert folders == ["round1", "round1", "round2"] and (tmp_path / "fin/checkpoint_fin.pt").is_file()


def test_rounds_that_are_finished_are_not_trained_again_and_belong_to_their_flags(rounds, capsys):
    rounds.next_nlls = [4.5, 4.75]
    fine_tune("--lr", "30")
    fine_tune("--lr", "30")
    assert len(rounds.commands) == 2
    with pytest.raises(SystemExit) as end:
        fine_tune("--lr", "10")
    told = capsys.readouterr().err
    assert end.value.code == 2 and "fin/round1 holds a run with --lr 30, and this one has --lr 10" in told
    assert len(rounds.commands) == 2


def test_trainings_have_the_flags_of_the_preset(rounds):
    preset = ARCHITECTURES[ARCH]
    tuning = as_arguments({"arch": ARCH, **preset.training, **preset.averaging_flags})
    rounds.next_nlls = [6.0]
    fine_tune()
    ((command, _),) = rounds.commands
    assert command[:4] == [sys.executable, "-m", "fairseq_cli.train", "my data"]
    where = ["--save-dir=fin/round1", "--finetune-from-model=start.pt"]
    logged = ["--no-epoch-checkpoints", "--log-format=simple", "--log-interval=200"]

    def read(arguments):
        return vars(options.parse_args_and_arch(options.get_training_parser(), input_args=arguments))

    found = read([argument for argument in command[3:] if argument != f"--user-dir={user_dir()}"])
    assert found == read(["my data", *where, *tuning, *logged, "--cpu"])
    assert found["averaging"] == "immediate"


def test_rounds_keep_their_last_epochs_where_that_is_asked(rounds):
    rounds.next_nlls = [6.0]
    fine_tune("--keep-last-epochs", "3")
    ((command, _),) = rounds.commands
    assert command[-2:] == ["--keep-last-epochs", "3"] and "--no-epoch-checkpoints" not in command


def test_a_folder_is_of_one_start(rounds, capsys, tmp_path):
    rounds.next_nlls = [6.0]
    fine_tune()
    assert "fin/round1 holds a run with --arch lstm_lm_awd_ptb, and" in refused(capsys, arch="lstm_lm_awd_wt2")
    (tmp_path / "other.pt").write_text("another start")
    for path in ("other.pt", "start.pt"):
        told = refused(capsys, path=path)
        assert f"fin/round1 holds a run that started from another {path}" in told
        (tmp_path / "start.pt").write_text("trained on")
    assert len(rounds.commands) == 1


@pytest.mark.parametrize(
    "more, changed, text",
    [
        (["--rounds", "0"], {}, "argument --rounds: 0: give a whole number of at least 1"),
        ([], {"path": "no.pt"}, "no.pt does not exist: give a checkpoint"),
        ([], {"arch": "lstm_lm_zaremba_large_ptb"}, "--arch lstm_lm_zaremba_large_ptb has no fine-tuning of its own: "),
        ([], {"arch": "lstm_lm_zaremba_large"}, "invalid choice: 'lstm_lm_zaremba_large'"),
        (["--rounds", "1"], {"arch": None}, "--rounds 1: give --arch as well, or leave it out"),
    ],
)
def test_mistakes_are_one_line_before_anything_is_written(more, changed, text, rounds, capsys, tmp_path):
    assert text in refused(capsys, *more, **changed)
    assert not rounds.commands and {path.name for path in tmp_path.iterdir()} == {"my data", "start.pt"}


NOT_KEPT = {
    *("data", "user_dir", "cpu", "num_workers", "log_format", "log_interval", "save_dir", "seed", "patience"),
    *("max_epoch", "max_update", "no_epoch_checkpoints", "no_save_optimizer_state", "force_anneal", "lr_shrink"),
}


def test_a_run_is_fine_tuned_with_the_flags_of_its_training():
    """The command line of a run gives the flags that it was trained with, whatever the model."""
    for name in ("lstm_lm_doc", "mmlstm_lm_mos", "lstm_encdec_doc"):
        path = SMALL_MODELS / f"{name}.pt"
        flags = as_arguments(fine_tuning.flags_of_run(str(path)))
        arguments = [str(SMALL_MODELS / "data"), *flags, "--lr-scheduler=fixed"]
        found = vars(options.parse_args_and_arch(options.get_training_parser(), input_args=arguments))
        saved = vars(torch.load(path)["cfg"]["model"])
        assert found.pop("lr") == [pytest.approx(saved.pop("lr")[0] / 10)]
        differing = {one for one in saved.keys() & found.keys() if str(saved[one]) != str(found[one])}
        assert differing <= NOT_KEPT and len(saved) > 100
