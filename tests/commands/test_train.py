"""Training by a recipe, with a stub in place of fairseq-train: flags, resumption."""

import json
import os
import shlex
import sys
from contextlib import nullcontext
from hashlib import sha256

import pytest
from typed_commands import refused, type_command

from fairseq_plugins.fairseq_patches.saving import locked_for_command
from fairseq_plugins.own_parts import user_dir
from fairseq_plugins.recipes import RECIPES, training, training_arguments


@pytest.fixture
def commands(monkeypatch):
    """The commands that would run. The stub ends with ``commands.status`` and saves if ``commands.saves``."""

    class Commands(list):
        status = 0
        saves = False

    commands = Commands()

    def run_logged(command, *, log):
        commands.append((command, log))
        if commands.saves:
            replaced = log.with_name("checkpoint.tmp")
            replaced.write_text(f"checkpoint {len(commands)}")
            replaced.rename(log.with_name("checkpoint_last.pt"))
        return commands.status

    monkeypatch.setattr(training, "run_logged", run_logged)
    return commands


@pytest.fixture
def refusal(capsys):
    """``refusal(arguments)``: the line by which ``train`` refuses them."""
    return lambda arguments: refused("train", arguments, capsys)


def test_the_recipes_flags_come_first_and_the_users_win(commands, tmp_path):
    save_dir = tmp_path / "models/a b"
    user = ["--max-update", "2", "--save-interval", "3", "--adam-betas", "(0.8, 0.9)", "--cpu"]
    type_command("train", ["multi30k", "doc", str(tmp_path), "--save-dir", str(save_dir), "--seed", "4", *user])
    ((command, log),) = commands
    expected = training_arguments(
        RECIPES["multi30k"], "doc", data=str(tmp_path), save_dir=str(save_dir), seed=4, more=user
    )
    assert command == [sys.executable, "-m", "fairseq_cli.train", *expected]
    assert log == save_dir / "train.log" and save_dir.is_dir()


@pytest.mark.parametrize(
    "typed, flag",
    [
        ("--max-epoch 2 reduced doc DATA --save-dir DIR", "--max-epoch 2"),
        ("reduced doc --max-epoch 2 DATA --save-dir DIR", "--max-epoch 2"),
        ("reduced --lr 0.5 0.1 doc DATA --save-dir DIR", "--lr 0.5"),
    ],
)
def test_flags_before_the_last_word_are_not_taken_for_it(typed, flag, commands, refusal):
    told = f"error: {flag}: flags of fairseq-train come after all other words\n"
    assert refusal(typed.split()).endswith(told) and not commands


def test_the_users_flags_may_stand_between_and_follow_two_dashes(commands, tmp_path):
    begin = ["multi30k", "doc", tmp_path]
    type_command("train", [*begin, "--max-update", "2", "--save-dir", tmp_path / "a", "--lr", "-1"])
    type_command("train", [*begin, "--save-dir", tmp_path / "b", "--", "--lr", "5"])
    (between, _), (after, _) = commands
    assert between[-4:] == ["--max-update", "2", "--lr", "-1"]
    assert after[-2:] == ["--lr", "5"] and "--" not in after


def test_the_status_is_that_of_the_training(commands, tmp_path):
    commands.status = 143
    with pytest.raises(SystemExit) as end:
        type_command("train", ["reduced", "doc", str(tmp_path), "--save-dir", str(tmp_path)])
    assert end.value.code == 143


def test_a_dry_run_prints_the_command_line_and_does_nothing(commands, tmp_path, capsys):
    arguments = ["reduced", "doc", "no data", "--save-dir", str(tmp_path / "save"), "--dry-run", "--lr", "2"]
    type_command("train", arguments)
    words = shlex.split(capsys.readouterr().out)
    assert words[:3] == ["fairseq-train", "no data", f"--user-dir={user_dir()}"] and words[-2:] == ["--lr", "2"]
    assert not commands and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "recipe, system, text",
    [
        ("reduced", "doc", "no data does not exist: give the directory that data-prep wrote"),
        ("reduced", "10:0", "recipe reduced has no system 10:0: choose one of tied, "),
        ("reduce", "doc", "there is no recipe reduce: choose one of "),
        ("presets", "gated_lm", "is a gate on a trained language model: give its checkpoint by --base-model CKPT, or"),
        ("iog_ptb", "rhn+iog", "rhn+iog of recipe iog_ptb is a gate on a trained rhn: give its checkpoint by --base-"),
        ("iog_ptb", "awd-fin", "goes on from a trained awd: give its checkpoint by --finetune-from-model CKPT"),
        ("reduced", "doc-averaged", "goes on from a trained doc: give its checkpoint by --finetune-from-model CKPT"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(recipe, system, text, commands, tmp_path, monkeypatch, refusal):
    monkeypatch.chdir(tmp_path)
    assert text in refusal([recipe, system, "no data", "--save-dir", "save"])
    assert not commands and not list(tmp_path.iterdir())


def test_the_list_has_every_recipe_and_system_with_its_published_figures(capsys, refusal):
    def listed(*name):
        with pytest.raises(SystemExit) as end:
            type_command("train", ["--list", *name])
        assert end.value.code == 0
        return capsys.readouterr().out

    blocks = {block.partition(":")[0]: block for block in listed().split("\n\n")}
    assert list(blocks) == list(RECIPES)
    for name, recipe in RECIPES.items():
        lines = {line.split()[0]: line for line in blocks[name].splitlines() if line.startswith("    ")}
        assert list(lines) == ["SYSTEM", *recipe.systems]
        for system_name, system in recipe.systems.items():
            for text in (system.label, *system.published.values()):
                assert text in lines[system_name]
            for column in system.published:
                assert column in lines["SYSTEM"]
    assert listed("drill_ptb").strip() == blocks["drill_ptb"]
    score = "  Score: fairseq-plugins "
    assert score not in blocks["drill_ptb"]
    assert f"{score}evaluate rouge DATA --path CKPT --beam 20 --out OUT" in blocks["gigaword"]
    line = f"{score}evaluate bleu DATA --path CKPT --beam 4 --out OUT -- --lenpen 0.6"
    assert line in blocks["wmt14_transformer"].splitlines()
    refusal(["--list", "nothing"])


# what ``train`` resumes, and what it refuses


def recorded(tmp_path):
    return json.loads((tmp_path / "doc/run.json").read_text())


def again(tmp_path, *flags):
    return ["reduced", "doc", str(tmp_path), "--save-dir", str(tmp_path / "doc"), *flags]


def train_again(tmp_path, *flags):
    type_command("train", again(tmp_path, *flags))


def test_a_finished_training_is_left_as_it_is_unless_it_is_to_be_longer(commands, tmp_path, capsys):
    commands.saves = True
    for flags, num_trainings in (([], 1), ([], 1), (["--max-epoch", "9"], 2), (["--max-epoch=9"], 3)):
        train_again(tmp_path, *flags)
        assert len(commands) == num_trainings, flags
    assert "doc has ended; to continue, raise the one of --max-epoch, --max-update or" in capsys.readouterr().out
    train_again(tmp_path, "--max-epoch=9", "--stop-time-hours", "1")
    train_again(tmp_path, "--max-epoch=9", "--stop-time-hours", "1")
    assert len(commands) == 5, "a training that was stopped goes on"


def test_a_finished_run_without_checkpoints_is_told(commands, tmp_path, refusal):
    commands.saves = True
    train_again(tmp_path)
    (tmp_path / "doc/checkpoint_last.pt").unlink()
    told = f"{tmp_path}/doc was trained, but its checkpoints are gone: remove run.json there to train it again"
    assert told in refusal(again(tmp_path)) and len(commands) == 1


def test_a_run_that_began_anew_is_resumed_without_the_flag(commands, tmp_path, refusal):
    commands.saves, commands.status = True, 143
    for flags in ([], ["--restore-file", ""]):
        with pytest.raises(SystemExit):
            train_again(tmp_path, *flags)
    told = refusal(again(tmp_path, "--restore-file", ""))
    assert f"{tmp_path}/doc holds a run that began with --restore-file '', which would begin again: leave out" in told
    commands.status = 0
    train_again(tmp_path)
    assert len(commands) == 3 and recorded(tmp_path)["status"] == "finished"


def test_a_run_that_made_no_update_begins_again_with_its_restore_file(commands, tmp_path):
    """As where the restored checkpoint has reached --max-epoch: nothing was saved that could be resumed."""
    for flags in ([], ["--max-epoch", "9"]):
        train_again(tmp_path, "--restore-file", "other/checkpoint_best.pt", *flags)
        assert not (tmp_path / "doc/run.json").exists()
    assert len(commands) == 2


def test_a_run_does_not_replace_the_model_that_it_starts_from(commands, tmp_path, refusal):
    (tmp_path / "doc").mkdir()
    start = tmp_path / "doc/checkpoint_best.pt"
    start.write_text("weights of fairseq-train alone")
    told = refusal(again(tmp_path, "--finetune-from-model", str(start)))
    assert f"{tmp_path}/doc holds the model that this run starts from: give another --save-dir" in told
    assert not commands


def test_a_run_that_the_system_killed_is_told(commands, tmp_path, capsys):
    commands.status = 137
    with pytest.raises(SystemExit) as ended:
        train_again(tmp_path)
    assert ended.value.code == 137
    assert capsys.readouterr().err == "error: fairseq-train was killed, perhaps because memory ran out\n"


@pytest.mark.parametrize(
    "flags, told",
    [
        (["--lr", "2"], "holds a run with --lr 20, and this one has --lr 2: give another --save-dir"),
        (["--seed", "3"], "holds a run with no --seed, and this one has --seed 3: give another --save-dir"),
        (["--no-save"], "holds a run with no --no-save, and this one has --no-save: give another --save-dir"),
    ],
)
def test_a_finished_training_does_not_take_other_flags(flags, told, commands, tmp_path, refusal):
    commands.saves = True
    train_again(tmp_path)
    assert told in refusal(again(tmp_path, *flags)) and len(commands) == 1


def test_a_training_that_saves_nothing_is_not_finished(commands, tmp_path):
    for _ in range(2):
        train_again(tmp_path, "--no-save")
    assert len(commands) == 2 and not (tmp_path / "doc/run.json").exists()


def test_a_schedule_that_depends_on_the_length_keeps_it(commands, tmp_path, refusal):
    commands.saves = True
    train_again(tmp_path, "--lr-scheduler", "fixed", "--max-update", "20")
    train_again(tmp_path, "--lr-scheduler", "fixed", "--max-update", "40")
    another = tmp_path / "another"
    another.mkdir()
    train_again(another, "--lr-scheduler", "cosine", "--max-update", "20")
    told = refusal(again(another, "--lr-scheduler", "cosine", "--max-update", "40"))
    assert "with --max-update 20, and this one has --max-update 40: give another" in told and len(commands) == 3


def test_a_training_that_was_stopped_does_not_go_on_with_other_flags(commands, tmp_path, refusal):
    commands.status = 143
    for flags in (["--lr", "2"], ["--lr", "3"]):
        with pytest.raises(SystemExit):
            train_again(tmp_path, *flags)
        assert not (tmp_path / "doc/run.json").exists(), "it left nothing to go on with"
    commands.saves = True
    with pytest.raises(SystemExit):
        train_again(tmp_path, "--lr", "3", "--max-epoch", "9")
    told = "holds a run with --lr 3, and this one has --lr 4: give another --save-dir, or remove run.json there"
    assert told in refusal(again(tmp_path, "--lr", "4", "--max-epoch", "9")) and len(commands) == 3
    commands.status = 0
    train_again(tmp_path, "--lr", "3", "--reset-dataloader", "--cpu")
    assert len(commands) == 4 and recorded(tmp_path)["status"] == "finished"


def test_a_call_that_leaves_nothing_keeps_the_record_of_before(commands, tmp_path):
    (tmp_path / "doc").mkdir()
    kept = {"command": "fairseq-train data --lr 5", "status": "begun", "started_from": [], "data": {}}
    (tmp_path / "doc/run.json").write_text(json.dumps(kept))
    commands.status = 1  # as where another run under way has locked the folder
    with pytest.raises(SystemExit):
        train_again(tmp_path, "--lr", "2")
    assert recorded(tmp_path) == kept


def test_a_training_of_fairseq_alone_is_gone_on_with(commands, tmp_path):
    (tmp_path / "doc").mkdir()
    (tmp_path / "doc/checkpoint_last.pt").touch()
    commands.status = 2
    with pytest.raises(SystemExit):
        train_again(tmp_path, "--no-such-flag")
    commands.status, commands.saves = 0, True
    train_again(tmp_path, "--lr", "2")
    assert len(commands) == 2 and "--lr 2" in recorded(tmp_path)["command"]


def test_short_flags_are_flags_and_negative_numbers_values(commands, tmp_path, refusal):
    commands.saves = True
    train_again(tmp_path, "--max-epoch", "3", "-s", "de", "--lr", "-1")
    train_again(tmp_path, "-s", "de", "--lr", "-1", "--max-epoch", "4")
    assert len(commands) == 2
    told = refusal(again(tmp_path, "--max-epoch", "5", "-s", "fr", "--lr", "-1"))
    assert "with -s de, and this one has -s fr" in told


def test_a_training_that_began_with_other_weights_is_refused(commands, tmp_path, refusal):
    commands.saves = True
    start, another = tmp_path / "start.pt", tmp_path / "another.pt"
    start.write_text("weights"), another.write_text("weights")
    train_again(tmp_path, "--finetune-from-model", str(start))
    train_again(tmp_path, f"--finetune-from-model={another}", "--max-epoch", "9")
    assert len(commands) == 2, "the same weights elsewhere"
    another.unlink()
    train_again(tmp_path, "--finetune-from-model", str(another), "--max-epoch", "10")
    assert len(commands) == 3, "what is gone cannot be compared"
    start.write_text("trained on")
    for more in (["--max-epoch", "9"], []):
        told = refusal(again(tmp_path, "--finetune-from-model", str(start), *more))
        assert "holds a run that started from another" in told
    assert len(commands) == 3


def test_a_gate_on_base_models_that_were_trained_again_is_refused(commands, tmp_path, refusal):
    commands.saves = True
    bases = [tmp_path / "first.pt", tmp_path / "second.pt"]
    gate = ["presets", "gated_lm", str(tmp_path), "--save-dir", str(tmp_path / "gate"), "--base-model"]
    gate.append(":".join(map(str, bases)))
    for base in bases:
        base.write_text(base.name)
    type_command("train", gate), type_command("train", [*gate, "--max-epoch", "9"])
    assert len(commands) == 2
    bases[1].write_text("trained again")
    assert f"started from another {bases[1]}" in refusal([*gate, "--max-epoch", "9"]) and len(commands) == 2


def test_a_training_on_other_data_is_refused_finished_or_not(commands, tmp_path, refusal):
    for name in ("dict.txt", "train.bin", "train.idx", "train1.bin", "valid.bin", "test.bin"):
        (tmp_path / name).write_text(name)
    commands.saves = True
    train_again(tmp_path)
    assert recorded(tmp_path)["data"]["dict.txt"] == sha256(b"dict.txt").hexdigest()
    (tmp_path / "test.bin").write_text("another text to test on")
    train_again(tmp_path)
    train_again(tmp_path, "--max-epoch", "9")
    assert len(commands) == 2
    for name in ("dict.txt", "train1.bin", "valid.bin", "train2.bin"):
        content = (tmp_path / name).read_text() if (tmp_path / name).exists() else ""
        (tmp_path / name).write_text(f"other {name[1:]}")
        for more in ([], ["--max-epoch", "10"]):
            told = f"holds a run on other data: {name} has changed: give another"
            assert told in refusal(again(tmp_path, *more)) and len(commands) == 2
        (tmp_path / name).write_text(content) if content else (tmp_path / name).unlink()
    train_again(tmp_path, "--max-epoch", "10")
    assert len(commands) == 3


def test_two_calls_do_not_train_to_one_folder(commands, tmp_path, refusal):
    (tmp_path / "doc").mkdir()
    (told, wait), (waits, tell) = os.pipe(), os.pipe()
    if (other := os.fork()) == 0:
        with locked_for_command(tmp_path / "doc"):
            os.write(wait, b"locked")
            os.read(waits, 1)
            os._exit(0)
    os.read(told, 6)
    assert f"the run with process id {other} on" in refusal(again(tmp_path))
    assert not commands and not (tmp_path / "doc/run.json").exists()
    os.write(tell, b"x"), os.waitpid(other, 0)
    train_again(tmp_path)
    assert len(commands) == 1


def test_a_training_that_left_nothing_may_begin_with_other_data_and_weights(commands, tmp_path):
    start = tmp_path / "start.pt"
    for name, status in (("first", 1), ("second", 1), ("third", 0)):
        (tmp_path / "train.bin").write_text(f"{name} text")
        start.write_text(f"{name} weights")
        commands.status, commands.saves = status, status == 0
        with pytest.raises(SystemExit) if status else nullcontext():
            train_again(tmp_path, "--finetune-from-model", str(start))
        assert (tmp_path / "doc/run.json").exists() == (status == 0)
    assert len(commands) == 3 and recorded(tmp_path)["started_from"] == [sha256(b"third weights").hexdigest()]


def test_a_training_is_not_given_a_start_afterwards(commands, tmp_path, refusal):
    commands.saves = True
    start = tmp_path / "start.pt"
    start.write_text("weights")
    train_again(tmp_path)
    told = refusal(again(tmp_path, "--finetune-from-model", str(start)))
    assert f"did not start from {start}: give another --save-dir" in told


def test_a_run_without_a_record_resumes_with_its_start(commands, tmp_path):
    """As after a refusal of other flags, whose remedy is to remove the record."""
    (tmp_path / "doc").mkdir(), (tmp_path / "doc/checkpoint_last.pt").write_text("of an earlier version")
    (tmp_path / "start.pt").write_text("weights")
    flags = ["--finetune-from-model", str(tmp_path / "start.pt")]
    commands.status = 1
    with pytest.raises(SystemExit):
        train_again(tmp_path, *flags)
    commands.status = 0
    train_again(tmp_path, *flags)
    assert recorded(tmp_path)["started_from"] == [sha256(b"weights").hexdigest()]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"command": "fairseq-train", "status": 1}', '{"command": "\'"}'])
def test_a_damaged_record_is_refused(content, commands, tmp_path, refusal):
    (tmp_path / "doc").mkdir(), (tmp_path / "doc/run.json").write_text(content)
    assert f"{tmp_path}/doc/run.json is no record of a run: remove it" in refusal(again(tmp_path))
    assert not commands
