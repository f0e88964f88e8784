"""What ``train`` goes on with, and what it refuses, with a stub in place of fairseq-train."""

from hashlib import sha256

import pytest
from filelock import FileLock

from fairseq_plugins.cli.train import Train


def train_again(tmp_path, *flags):
    Train().main(["reduced", "doc", str(tmp_path), "--save-dir", str(tmp_path / "doc"), *flags])


def test_a_finished_training_is_left_as_it_is_unless_it_is_to_be_longer(commands, tmp_path, capsys):
    for flags, num_trainings in (([], 1), ([], 1), (["--max-epoch", "9"], 2), (["--max-epoch=9"], 3)):
        train_again(tmp_path, *flags)
        assert len(commands) == num_trainings, flags
    assert "doc is trained; to train on, remove trained.txt there" in capsys.readouterr().out
    train_again(tmp_path, "--max-epoch=9", "--stop-time-hours", "1")
    train_again(tmp_path, "--max-epoch=9", "--stop-time-hours", "1")
    assert len(commands) == 5, "a training that was stopped goes on"


@pytest.mark.parametrize(
    "flags, told",
    [
        (["--lr", "2"], "holds a training with --lr 20, and this one has --lr 2: give another --save-dir"),
        (["--seed", "3"], "holds a training with no --seed, and this one has --seed 3: give another --save-dir"),
        (["--no-save"], "holds a training with no --no-save, and this one has --no-save: give another --save-dir"),
    ],
)
def test_a_finished_training_does_not_take_other_flags(flags, told, commands, tmp_path, capsys):
    train_again(tmp_path)
    with pytest.raises(SystemExit) as end:
        train_again(tmp_path, *flags)
    printed = capsys.readouterr().err
    assert end.value.code == 2 and printed.count("\n") == 1 and told in printed and len(commands) == 1


def test_a_training_that_was_stopped_does_not_go_on_with_other_flags(commands, tmp_path, capsys):
    commands.status = 143
    for flags in (["--lr", "2"], ["--lr", "3"]):
        with pytest.raises(SystemExit):
            train_again(tmp_path, *flags)
        assert not (tmp_path / "doc/begun.txt").exists(), "it left nothing to go on with"
    commands.saves = True
    with pytest.raises(SystemExit):
        train_again(tmp_path, "--lr", "3", "--max-epoch", "9")
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        train_again(tmp_path, "--lr", "4", "--max-epoch", "9")
    printed = capsys.readouterr().err
    told = "holds a training with --lr 3, and this one has --lr 4: give another --save-dir, or remove begun.txt there"
    assert end.value.code == 2 and told in printed
    assert len(commands) == 3
    commands.status = 0
    train_again(tmp_path, "--lr", "3", "--reset-dataloader", "--cpu")
    assert len(commands) == 4 and (tmp_path / "doc/trained.txt").is_file()


def test_a_call_that_leaves_nothing_keeps_the_record_of_before(commands, tmp_path):
    (tmp_path / "doc").mkdir()
    (tmp_path / "doc/begun.txt").write_text("fairseq-train data --lr 5\n")
    commands.status = 1  # as where another training under way has locked the folder
    with pytest.raises(SystemExit):
        train_again(tmp_path, "--lr", "2")
    assert (tmp_path / "doc/begun.txt").read_text() == "fairseq-train data --lr 5\n"


def test_a_training_of_fairseq_alone_is_gone_on_with(commands, tmp_path):
    (tmp_path / "doc").mkdir()
    (tmp_path / "doc/checkpoint_last.pt").touch()
    commands.status = 2
    with pytest.raises(SystemExit):
        train_again(tmp_path, "--no-such-flag")
    commands.status, commands.saves = 0, True
    train_again(tmp_path, "--lr", "2")
    assert len(commands) == 2 and "--lr 2" in (tmp_path / "doc/begun.txt").read_text()


def test_short_flags_are_flags_and_negative_numbers_values(commands, tmp_path, capsys):
    train_again(tmp_path, "--max-epoch", "3", "-s", "de", "--lr", "-1")
    train_again(tmp_path, "-s", "de", "--lr", "-1", "--max-epoch", "4")
    assert len(commands) == 2
    with pytest.raises(SystemExit):
        train_again(tmp_path, "--max-epoch", "5", "-s", "fr", "--lr", "-1")
    assert "with -s de, and this one has -s fr" in capsys.readouterr().err


def test_a_training_that_began_with_other_weights_is_refused(commands, tmp_path, capsys):
    start, another = tmp_path / "start.pt", tmp_path / "another.pt"
    start.write_text("weights"), another.write_text("weights")
    train_again(tmp_path, "--finetune-from-model", str(start))
    train_again(tmp_path, f"--finetune-from-model={another}", "--max-epoch", "9")
    assert len(commands) == 2, "the same weights elsewhere"
    (tmp_path / "doc/trained.txt").unlink(), another.unlink()
    train_again(tmp_path, "--finetune-from-model", str(another), "--max-epoch", "9")
    assert len(commands) == 3, "what is gone cannot be compared"
    start.write_text("trained on")
    for more in (["--max-epoch", "9"], []):
        with pytest.raises(SystemExit) as end:
            train_again(tmp_path, "--finetune-from-model", str(start), *more)
        printed = capsys.readouterr().err
        assert end.value.code == 2 and printed.count("\n") == 1 and "began with other weights than those in" in printed
    assert len(commands) == 3


def test_a_gate_on_base_models_that_were_trained_again_is_refused(commands, tmp_path, capsys):
    bases = [tmp_path / "first.pt", tmp_path / "second.pt"]
    gate = ["presets", "gated_lm", str(tmp_path), "--save-dir", str(tmp_path / "gate"), "--base-model"]
    gate.append(":".join(map(str, bases)))
    for base in bases:
        base.write_text(base.name)
    Train().main(gate), Train().main([*gate, "--max-epoch", "9"])
    assert len(commands) == 2
    bases[1].write_text("trained again")
    with pytest.raises(SystemExit) as end:
        Train().main([*gate, "--max-epoch", "9"])
    printed = capsys.readouterr().err
    assert end.value.code == 2 and f"other weights than those in {bases[1]} today" in printed and len(commands) == 2


def test_a_training_on_other_data_is_refused_finished_or_not(commands, tmp_path, capsys):
    for name in ("dict.txt", "train.bin", "train.idx", "train1.bin", "valid.bin", "test.bin"):
        (tmp_path / name).write_text(name)
    commands.saves = True
    train_again(tmp_path)
    assert (tmp_path / "doc/data.txt").read_text().startswith(f"{sha256(b'dict.txt').hexdigest()}  dict.txt\n")
    (tmp_path / "test.bin").write_text("another text to test on")
    train_again(tmp_path)
    train_again(tmp_path, "--max-epoch", "9")
    assert len(commands) == 2
    for name in ("dict.txt", "train1.bin", "valid.bin", "train2.bin"):
        content = (tmp_path / name).read_text() if (tmp_path / name).exists() else ""
        (tmp_path / name).write_text(f"other {name[1:]}")
        for more in ([], ["--max-epoch", "10"]):
            with pytest.raises(SystemExit) as end:
                train_again(tmp_path, *more)
            told = capsys.readouterr().err
            assert end.value.code == 2 and told.count("\n") == 1 and len(commands) == 2
            assert f"holds a training on other data than those of today, which differ in {name}: give another" in told
        (tmp_path / name).write_text(content) if content else (tmp_path / name).unlink()
    train_again(tmp_path, "--max-epoch", "10")
    assert len(commands) == 3


def test_a_training_that_left_nothing_may_begin_with_other_data(commands, tmp_path):
    commands.status = 1
    for text in ("a text", "another text"):
        (tmp_path / "train.bin").write_text(text)
        with pytest.raises(SystemExit):
            train_again(tmp_path)
    assert len(commands) == 2
    assert (tmp_path / "doc/data.txt").read_text() == f"{sha256(b'another text').hexdigest()}  train.bin\n"


def test_two_calls_do_not_train_to_one_folder(commands, tmp_path, capsys):
    (tmp_path / "doc").mkdir()
    with FileLock(tmp_path / "doc/.recipe.lock"), pytest.raises(SystemExit) as end:
        train_again(tmp_path)
    printed = capsys.readouterr().err
    assert end.value.code == 2 and printed.count("\n") == 1 and "another call trains to --save-dir" in printed
    assert not commands and not (tmp_path / "doc/begun.txt").exists()
    train_again(tmp_path)
    assert len(commands) == 1


def test_a_file_system_without_locks_is_no_hindrance(commands, tmp_path, monkeypatch):
    def has_none(self, **_):
        raise NotImplementedError

    monkeypatch.setattr(FileLock, "acquire", has_none)
    train_again(tmp_path)
    assert len(commands) == 1 and (tmp_path / "doc/trained.txt").is_file()


def test_a_training_that_left_nothing_may_begin_with_other_weights(commands, tmp_path):
    start = tmp_path / "start.pt"
    start.write_text("weights")
    commands.status = 1
    with pytest.raises(SystemExit):
        train_again(tmp_path, "--finetune-from-model", str(start))
    commands.status = 0
    start.write_text("other weights")
    train_again(tmp_path, "--finetune-from-model", str(start))
    assert (tmp_path / "doc/started_from.txt").read_text() == f"{sha256(b'other weights').hexdigest()}\n"


def test_what_is_gone_on_with_is_not_noted_as_the_start(commands, tmp_path):
    (tmp_path / "doc").mkdir(), (tmp_path / "doc/checkpoint_last.pt").write_text("of an earlier version")
    (tmp_path / "start.pt").write_text("weights")
    train_again(tmp_path, "--finetune-from-model", str(tmp_path / "start.pt"))
    assert not (tmp_path / "doc/started_from.txt").exists()
