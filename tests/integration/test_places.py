"""Places of the package and of data: installed, a bare checkout, folders with names that programs tend to misread."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import fairseq_cli.eval_lm
import fairseq_cli.generate
import fairseq_cli.train
import fairseq_cli.validate
import pytest
import torch
from binarised_data import copy_data
from commands import ENVIRONMENT, command
from paths import PLUGINS, ROOT, SMALL_MODELS
from typed_commands import parser_of, type_command

from fairseq_plugins import load
from fairseq_plugins.commands import app


def train_two_updates(data, user_dir, arch, *, cwd, **environment):
    flags = ["--user-dir", user_dir, "--arch", arch, "--task", "stateful_lm", "--batch-size", 2, "--cpu"]
    flags += ["--optimizer", "nt_asgd", "--criterion", "regularized_cross_entropy", "--max-update", 2, "--no-save"]
    result = subprocess.run(
        command("fairseq_cli.train", data, *flags),
        cwd=cwd,
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-2000:]


def copy_package(destination):
    shutil.copytree(PLUGINS, destination, ignore=shutil.ignore_patterns("__pycache__"))
    return destination


def test_bare_checkout_wins_over_an_installed_package(data, tmp_path):
    package = copy_package(tmp_path / "a checkout/fairseq_plugins")
    with open(package / "models/presets/__init__.py", "a") as presets:
        presets.write('\nLANGUAGE_MODELS["lstm_lm_of_the_checkout"] = LANGUAGE_MODELS["lstm_lm_doc"]\n')
    train_two_updates(data, "fairseq_plugins", "lstm_lm_of_the_checkout", cwd=package.parent)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the package as ``pip install .`` leaves it; its dependencies are those of the tests."""
    folder = tmp_path_factory.mktemp("installation")
    source = folder / "source"
    copy_package(source / "fairseq_plugins")
    for name in ("setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    flags = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", folder / "site", source]
    subprocess.run([sys.executable, "-m", "pip", "install", *flags], check=True, capture_output=True)
    return folder / "site"


def test_plain_install(site, data, tmp_path):
    found = "importlib.util.find_spec('fairseq_plugins').submodule_search_locations[0]"
    where = [sys.executable, "-c", f"import importlib.util; print({found})"]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    installed = subprocess.run(where, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert installed.stdout.strip() == str(site / "fairseq_plugins")
    assert len(list((site / "fairseq_plugins/demo_corpus").glob("*.gz"))) == 6
    script = [sys.executable, site / "bin/fairseq-plugins", "lm"]
    listed = subprocess.run(script, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert "lm eval" in listed.stdout
    train_two_updates(data, site / "fairseq_plugins", "lstm_lm_mos", cwd=tmp_path, PYTHONPATH=str(site))


# folders with names that programs tend to misread

NAMES = ["lr=0.1, Müller's\nrun 10:00:00", "-dash"]


@pytest.fixture(scope="module", params=NAMES)
def name(request, tmp_path_factory):
    """A link in the working folder to one with data and trained models."""
    parent = tmp_path_factory.mktemp("awkward")
    folder = parent / "folder"
    (parent / request.param).symlink_to("folder", target_is_directory=True)
    copy_data(SMALL_MODELS / "data/lm", folder / "lm")
    pairs = dict(subwords=True, tokenizer="moses", case="kept")
    copy_data(SMALL_MODELS / "data/translation", folder / "translation", **pairs)
    shutil.copy(SMALL_MODELS / "mmlstm_lm_mos.pt", folder)
    shutil.copy(SMALL_MODELS / "lstm_encdec_doc.pt", folder)
    (folder / "run").mkdir()
    shutil.copy(SMALL_MODELS / "lstm_lm_doc.pt", folder / "run/checkpoint_best.pt")
    (folder / "run/train.log").write_text(
        "2026-11-21 09:59:50 | INFO | fairseq_cli.train | {'_name': None, 'common': {'_name': None, 'seed': 1}}\n"
        "2026-11-21 09:59:55 | INFO | fairseq_cli.train | num. shared model params: 900 (num. trained: 900)\n"
        "2026-11-21 10:00:01 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 3 | ppl 8.25 | wps 2000\n"
        "2026-11-21 10:00:02 | INFO | train | epoch 001 | loss 3 | ppl 8 | wps 900.5 | wall 10\n"
    )
    (folder / "text").write_text("the big cat\n")
    (folder / "sources").write_text("a b c\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(parent)
        yield request.param


def words(line: str, name: str):
    """The arguments of a line, in which @ stands for the folder, as a user types them."""
    typed = f"./{name}" if name.startswith("-") else name
    return [word.replace("@", typed) for word in line.split()]


@pytest.mark.parametrize(
    "line",
    [
        "lm eval @/lm --path @/run/checkpoint_best.pt",
        "lm eval @/lm --path @/run @/mmlstm_lm_mos.pt",
        "lm eval @/lm --path @/run/checkpoint_best.pt:@/mmlstm_lm_mos.pt",
        "lm score @/lm --path @/run --input @/text --tokenised --plot @/surprisal.png",
        "lm generate @/lm --path @/run --input @/text --tokenised --max-length 2",
        "translate @/translation --path @/lstm_encdec_doc.pt --input @/sources",
        "average --path @/run/checkpoint_best.pt @/run/checkpoint_last.pt --out @/mean.pt",
        "average --path @/run --last 2 --out @/mean.pt",
        "analyze frequency @/lm --path A=@/run B=@/mmlstm_lm_mos.pt",
        "compare runs @/lm --path A=@/run --out @/comparison",
        "analyze experts @/lm --path A=@/run --num 1 --out @/experts",
        "compare curves --path A=@/run --plot @/curves.png",
        "ngram train @/lm --order 2 --out @/ngram.arpa",
        "decode @/translation --path @/lstm_encdec_doc.pt --out @/decoded",
    ],
)
def test_a_command_finds_what_is_in_it(line, name, capsys):
    command = next(command for command in app.COMMANDS if line.startswith(f"{command} "))
    arguments = words(line.removeprefix(command), name)
    if command == "average":
        _write_checkpoints_of_two_updates(Path(name, "run"))
    type_command(command, [*arguments, *(["--cpu"] if "--cpu" in parser_of(command).format_help() else [])])
    shown = capsys.readouterr()
    assert "rror" not in shown.err and (shown.out or command == "decode")


def _write_checkpoints_of_two_updates(run: Path) -> None:
    state = torch.load(run / "checkpoint_best.pt")
    for number, path in enumerate(("checkpoint_last.pt", "checkpoint1.pt", "checkpoint2.pt")):
        state["optimizer_history"][-1]["num_updates"] = number
        torch.save(state, run / path)


def test_loading_finds_what_is_in_it(name):
    assert load(f"{name}/run", f"{name}/lm", text="tokenised").score(["the big cat"])


GATED = (
    "@/lm --task stateful_lm --arch gated_lm --base-model @/run/checkpoint_best.pt:@/mmlstm_lm_mos.pt --gate-dim 2 "
    "--save-dir @/gated --batch-size 2 --tokens-per-sample 5 --max-update 1 --optimizer sgd --lr 1"
)
PAIRS = "@/translation --arch lstm_encdec --embed-dim 4 --hidden-sizes 4 --save-dir @/encdec --batch-size 9"


@pytest.mark.parametrize("name", NAMES[:1], indirect=True)
@pytest.mark.parametrize(
    "program, line",
    [
        (fairseq_cli.generate, "@/translation --path @/lstm_encdec_doc.pt:@/lstm_encdec_doc.pt --beam 1"),
        (fairseq_cli.validate, "@/lm --path @/run/checkpoint_best.pt --task stateful_lm --batch-size 2"),
        (fairseq_cli.eval_lm, "@/lm --path @/run/checkpoint_best.pt --task stateful_lm"),
        (fairseq_cli.train, GATED),
        (fairseq_cli.train, f"{PAIRS} --max-epoch 2 --optimizer sgd --lr 1"),
    ],
)
def test_fairseq_finds_what_is_in_it(program, line, name, run_here):
    run_here(program, *words(line, name))


def test_a_name_that_is_also_the_value_of_a_pair_is_asked_for_a_name(tmp_path, monkeypatch, refuse):
    monkeypatch.chdir(tmp_path)
    Path("lr=0.1").mkdir()
    line = refuse("compare curves", "--path", "lr=0.1", "--plot", "curves.png")
    assert line == "lr=0.1: give it as NAME=PATH"
