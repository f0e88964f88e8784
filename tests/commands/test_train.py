"""Training by a recipe, with a stub in place of fairseq-train: flags, resumption."""

import json
import os
import shlex
import sys
from hashlib import sha256

import pytest
from typed_commands import refused, type_command

from fairseq_plugins.fairseq_patches.saving import locked_for_command
from fairseq_plugins.own_parts import user_dir
from fairseq_plugins.recipes import RECIPES, training, training_arguments


@pytest.fixture
def commands(monkeypatch):
    """The commands that would run. The stub saves if ``commands.saves``, and ends with ``commands.status``."""

    class Commands(list):
        status = 0
        saves = True

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


@pytest.fixture
def again(tmp_path, monkeypatch):
    """``again(*flags)``: the arguments of a run in the folder ``doc``, which may start from ``start.pt``."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "start.pt").write_text("weights")
    return lambda *flags: ["reduced", "doc", ".", "--save-dir", "doc", *flags]


@pytest.fixture
def train(again):
    """``train(*flags)``: train there, and return the exit status."""

    def run(*flags):
        try:
            type_command("train", again(*flags))
        except SystemExit as end:
            return end.code
        return 0

    return run


@pytest.fixture
def refuse(again, refusal):
    """``refuse(*flags)``: the line by which a run there is refused."""
    return lambda *flags: refusal(again(*flags))


@pytest.fixture
def doc(tmp_path):
    """The folder, before its first run."""
    (tmp_path / "doc").mkdir()
    return tmp_path / "doc"


def recorded(folder):
    return json.loads((folder / "run.json").read_text())


@pytest.mark.parametrize(
    "status, told", [(143, ""), (137, "error: fairseq-train was killed, perhaps because memory ran out\n")]
)
def test_the_status_is_that_of_the_training(status, told, commands, train, capsys):
    commands.status = status
    assert train() == status and capsys.readouterr().err == told


def test_a_finished_training_is_left_as_it_is_unless_it_is_to_be_longer(commands, train, capsys):
    for flags, num_trainings in (([], 1), ([], 1), (["--max-epoch", "9"], 2), (["--max-epoch=9"], 3)):
        assert train(*flags) == 0 and len(commands) == num_trainings, flags
    assert "doc has ended; to continue, raise the one of --max-epoch, --max-update or" in capsys.readouterr().out
    for _ in range(2):
        train("--max-epoch=9", "--stop-time-hours", "1")
    assert len(commands) == 5, "a training that was stopped goes on"


@pytest.mark.parametrize(
    "first, second",
    [
        ("--max-epoch 3 -s de --lr -1", "-s de --lr -1 --max-epoch 4"),
        ("--lr-scheduler fixed --max-update 20", "--lr-scheduler fixed --max-update 40"),
        ("--lr 3", "--lr 3 --max-epoch 9 --reset-dataloader --cpu --log-interval 1 --save-interval 2"),
    ],
)
def test_some_flags_may_change(first, second, commands, train, tmp_path):
    commands.status = 143
    train(*first.split())
    commands.status = 0
    assert train(*second.split()) == 0
    assert len(commands) == 2 and recorded(tmp_path / "doc")["status"] == "finished"


@pytest.mark.parametrize("status", [0, 143])
@pytest.mark.parametrize(
    "first, second, told",
    [
        ("", "--lr 2", "with --lr 20, and this one has --lr 2: give another --save-dir, or remove run.json there"),
        ("", "--seed 3", "with no --seed, and this one has --seed 3: give another --save-dir"),
        ("", "--no-save", "with no --no-save, and this one has --no-save: give another --save-dir"),
        ("-s de --lr -1", "-s fr --lr -1", "with -s de, and this one has -s fr"),
        (
            "--lr-scheduler cosine --max-update 20",
            "--lr-scheduler cosine --max-update 40",
            "with --max-update 20, and this one has --max-update 40: give another",
        ),
        ("", "--finetune-from-model start.pt", "that did not start from start.pt: give another --save-dir"),
    ],
)
def test_others_are_refused_finished_or_not(status, first, second, told, commands, train, refuse):
    commands.status = status
    assert train(*first.split()) == status
    assert f"doc holds a run {told}" in refuse(*second.split()) and len(commands) == 1


def test_a_finished_run_without_checkpoints_is_told(commands, train, refuse, tmp_path):
    train()
    (tmp_path / "doc/checkpoint_last.pt").unlink()
    told = "doc was trained, but its checkpoints are gone: remove run.json there to train it again"
    assert told in refuse() and len(commands) == 1


def test_a_run_that_began_anew_is_resumed_without_the_flag(commands, train, refuse, tmp_path):
    commands.status = 143
    for flags in ([], ["--restore-file", ""]):
        train(*flags)
    told = "doc holds a run that began with --restore-file '', which would begin again: leave out"
    assert told in refuse("--restore-file", "")
    commands.status = 0
    assert train() == 0 and len(commands) == 3 and recorded(tmp_path / "doc")["status"] == "finished"


@pytest.mark.parametrize("flags", [["--no-save"], ["--restore-file", "other/checkpoint_best.pt"]])
def test_a_run_that_saves_nothing_is_not_finished(flags, commands, train, tmp_path):
    """As where the restored checkpoint has reached --max-epoch."""
    commands.saves = False
    for more in ([], ["--max-epoch", "9"]):
        train(*flags, *more)
        assert not (tmp_path / "doc/run.json").exists()
    assert len(commands) == 2


def test_a_run_does_not_replace_the_model_that_it_starts_from(commands, refuse, doc):
    (doc / "checkpoint_best.pt").write_text("weights of fairseq-train alone")
    told = refuse("--finetune-from-model", "doc/checkpoint_best.pt")
    assert "doc holds the model that this run starts from: give another --save-dir" in told and not commands


def test_a_call_that_leaves_nothing_keeps_the_record_of_before(commands, train, doc):
    kept = {"command": "fairseq-train data --lr 5", "status": "begun", "started_from": [], "data": {}}
    (doc / "run.json").write_text(json.dumps(kept))
    commands.status, commands.saves = 1, False  # as where another run under way has locked the folder
    assert train("--lr", "2") == 1 and recorded(doc) == kept


def test_a_run_without_a_record_is_resumed_with_any_flags_and_its_start(commands, train, doc):
    """As one of fairseq alone, or after a refusal of other flags, whose remedy is to remove the record."""
    (doc / "checkpoint_last.pt").touch()
    commands.status, commands.saves = 2, False
    assert train("--no-such-flag", "--finetune-from-model", "start.pt") == 2
    commands.status = 0
    assert train("--lr", "2", "--finetune-from-model", "start.pt") == 0
    assert "--lr 2" in recorded(doc)["command"] and recorded(doc)["started_from"] == [sha256(b"weights").hexdigest()]


def test_a_training_that_began_with_other_weights_is_refused(commands, train, refuse, tmp_path):
    start, another = tmp_path / "start.pt", tmp_path / "another.pt"
    another.write_text("weights")
    train("--finetune-from-model", "start.pt")
    train("--finetune-from-model=another.pt", "--max-epoch", "9")
    assert len(commands) == 2, "the same weights elsewhere"
    another.unlink()
    train("--finetune-from-model", "another.pt", "--max-epoch", "10")
    assert len(commands) == 3, "what is gone cannot be compared"
    start.write_text("trained on")
    for more in (["--max-epoch", "9"], []):
        assert "holds a run that started from another" in refuse("--finetune-from-model", "start.pt", *more)
    assert len(commands) == 3


def test_a_gate_on_base_models_that_were_trained_again_is_refused(commands, train, refuse, tmp_path):
    for name in ("first.pt", "second.pt"):
        (tmp_path / name).write_text(name)
    gate = ["--base-model", "first.pt:second.pt"]
    train(*gate)
    train(*gate, "--max-epoch", "9")
    assert len(commands) == 2
    (tmp_path / "second.pt").write_text("trained again")
    assert "started from another second.pt" in refuse(*gate, "--max-epoch", "9") and len(commands) == 2


def test_a_training_on_other_data_is_refused_finished_or_not(commands, train, refuse, tmp_path):
    for name in ("dict.txt", "train.bin", "train.idx", "train1.bin", "valid.bin", "test.bin"):
        (tmp_path / name).write_text(name)
    train()
    assert recorded(tmp_path / "doc")["data"]["dict.txt"] == sha256(b"dict.txt").hexdigest()
    (tmp_path / "test.bin").write_text("another text to test on")
    train()
    train("--max-epoch", "9")
    assert len(commands) == 2
    for name in ("dict.txt", "train1.bin", "valid.bin", "train2.bin"):
        content = (tmp_path / name).read_text() if (tmp_path / name).exists() else ""
        (tmp_path / name).write_text(f"other {name[1:]}")
        for more in ([], ["--max-epoch", "10"]):
            assert f"holds a run on other data: {name} has changed: give another" in refuse(*more)
        (tmp_path / name).write_text(content) if content else (tmp_path / name).unlink()
    train("--max-epoch", "10")
    assert len(commands) == 3


def test_a_training_that_left_nothing_may_begin_with_other_flags_data_and_weights(commands, train, tmp_path):
    for name, status in (("first", 1), ("second", 143), ("third", 0)):
        (tmp_path / "train.bin").write_text(f"{name} text")
        (tmp_path / "start.pt").write_text(f"{name} weights")
        commands.status, commands.saves = status, status == 0
        assert train("--finetune-from-model", "start.pt", "--lr", str(1 + status)) == status
        assert (tmp_path / "doc/run.json").exists() == (status == 0)
    assert recorded(tmp_path / "doc")["started_from"] == [sha256(b"third weights").hexdigest()]


def test_two_calls_do_not_train_to_one_folder(commands, train, refuse, doc):
    (told, wait), (waits, tell) = os.pipe(), os.pipe()
    if (other := os.fork()) == 0:
        with locked_for_command(doc):
            os.write(wait, b"locked")
            os.read(waits, 1)
            os._exit(0)
    os.read(told, 6)
    assert f"the run with process id {other} on" in refuse()
    assert not commands and not (doc / "run.json").exists()
    os.write(tell, b"x"), os.waitpid(other, 0)
    assert train() == 0 and len(commands) == 1


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"command": "fairseq-train", "status": 1}', '{"command": "\'"}'])
def test_a_damaged_record_is_refused(content, commands, refuse, doc):
    (doc / "run.json").write_text(content)
    assert "doc/run.json is no record of a run: remove it" in refuse() and not commands
