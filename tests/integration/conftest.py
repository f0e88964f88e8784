"""Small corpora and trained models, made once; commands that are run in this process."""

import io
import json
import logging
import os
import sys
from pathlib import Path
from typing import Tuple, Union

import pytest
import torch
from binarised_data import copy_data
from commands import ENVIRONMENT, preprocess, train
from generated_corpora import write_stories
from paths import PLUGINS
from translation_commands import EPOCHS, preprocess_pairs, train_translator, write_corpus
from typed_commands import type_command


@pytest.fixture(scope="session", autouse=True)
def commands_are_warm(programs):
    """Commands with ``commands.ENVIRONMENT`` run in warm processes."""
    ENVIRONMENT["PATH"] = os.pathsep.join((programs, os.environ["PATH"]))


@pytest.fixture(autouse=True)
def tests_are_warm(warm):
    """So do commands that tests start otherwise."""


@pytest.fixture(scope="session")
def text(made_once) -> Path:
    """Stories: ``train.txt``, ``valid.txt`` and ``test.txt``."""
    return made_once("stories", lambda out: write_stories(out, num_stories=50))


@pytest.fixture(scope="session")
def data(text, made_once) -> Path:
    """The stories as fairseq reads them."""
    return made_once("binarised stories", lambda out: preprocess(text, out))


@pytest.fixture(scope="session")
def trained(data, made_once) -> Path:
    """A finished training: its save directory, with train.log."""

    def make(save_dir: Path) -> None:
        log = train(data, save_dir, "--max-epoch", 2, "--no-epoch-checkpoints")
        (save_dir / "train.log").write_text(log)

    return made_once("trained", make)


@pytest.fixture(scope="session")
def pairs(made_once) -> Path:
    """Sentences and their translations: ``train.src``, ``train.tgt`` ..."""
    return made_once("pairs", write_corpus)


@pytest.fixture(scope="session")
def pair_data(pairs, made_once) -> Path:
    """The pairs as fairseq reads them."""
    return made_once("binarised pairs", lambda out: preprocess_pairs(pairs, out))


@pytest.fixture(scope="session")
def prepared(pair_data, tmp_path_factory) -> Path:
    """The pairs with codes of subwords as data-prep leaves them; they split no word of the corpus."""
    folder = tmp_path_factory.mktemp("with codes") / "data bin"
    return copy_data(pair_data, folder, subwords=True, tokenizer="moses", case="kept")


@pytest.fixture(scope="session")
def translator(pair_data, made_once) -> Path:
    """A DOC model: its save directory, with train.log."""

    def make(save_dir: Path) -> None:
        (save_dir / "train.log").write_text(train_translator(pair_data, save_dir, "--max-epoch", EPOCHS))

    return made_once("translator", make)


@pytest.fixture(scope="session")
def plain_translator(pair_data, made_once) -> Path:
    """A plain softmax trained with fairseq's criterion and BLEU: its save directory, with train.log."""
    flags = ["--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1", "--max-epoch", EPOCHS]
    flags += ["--eval-bleu", "--eval-bleu-args", '{"beam": 2, "max_len_b": 12}', "--eval-bleu-detok", "space"]
    flags += ["--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric", "--validate-interval", 3]

    def make(save_dir: Path) -> None:
        log = train_translator(pair_data, save_dir, *flags, model=["--arch", "lstm_encdec"])
        (save_dir / "train.log").write_text(log)

    return made_once("plain translator", make)


@pytest.fixture
def run_here(monkeypatch, capsys, caplog):
    """``run_here(command, *arguments)``: run a command of fairseq in this process; returns what it prints and logs."""

    def run(command, *arguments) -> str:
        caplog.clear()
        caplog.set_level(logging.INFO)
        # torch may wait five seconds for the end of a process that loads data
        flags = ["--user-dir", str(PLUGINS), "--cpu", "--num-workers", "0"]
        monkeypatch.setattr(sys, "argv", ["command", *map(str, arguments), *flags])
        command.cli_main()
        return capsys.readouterr().out + caplog.text

    return run


@pytest.fixture
def call(monkeypatch, capsys, caplog):
    """``call(name, *arguments, typed="")``: exit status of a command of the package, what it prints, what it tells."""

    def call(name: str, *arguments, typed: Union[str, bytes] = "", stream=io.BytesIO) -> Tuple[int, str, str]:
        caplog.set_level(logging.WARNING)  # the command does so, too; here the level before is restored
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        typed = typed if isinstance(typed, bytes) else typed.encode()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(stream(typed)))
        capsys.readouterr()  # what a command before it printed that failed
        status = 0
        try:
            type_command(name, arguments)
        except SystemExit as ended:
            status = ended.code
        return (status, *capsys.readouterr())

    return call


@pytest.fixture
def printed_by(call):
    """``printed_by(name, *arguments, typed="")``: what a command of the package prints. It must end well."""

    def printed_by(name: str, *arguments, **options) -> str:
        status, printed, told = call(name, *arguments, **options)
        assert status == 0, told
        return printed

    return printed_by


@pytest.fixture
def evaluate_here(printed_by):
    """``evaluate_here(data, *arguments)``: figures of the language model command, run in this process."""
    return lambda data, *arguments: json.loads(printed_by("lm eval", data, *arguments, "--json", "--cpu"))


@pytest.fixture
def refuse(call):
    """``refuse(name, *arguments, typed="")``: the one line that a command of the package ends with.

    It must end with status 2 and print nothing.
    """

    def refuse(name: str, *arguments, typed: str = "") -> str:
        status, printed, told = call(name, *arguments, typed=typed)
        assert status == 2 and printed == "", (printed, told)
        *warned, line = told.splitlines()  # libraries warn once a process, whichever test comes first
        assert not any(each.startswith("fairseq-plugins ") for each in warned), told
        return line.removeprefix(f"fairseq-plugins {name}: error: ")

    return refuse
