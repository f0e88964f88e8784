"""Commands on the pages, such as those that made the results, are those of the parsers; links lead somewhere."""

import importlib
import re
import shutil
import subprocess

import pytest
from paths import ROOT
from typed_commands import type_command

from fairseq_plugins import command_line
from fairseq_plugins.commands import train
from fairseq_plugins.commands.app import COMMANDS, PROGRAM, load_command
from fairseq_plugins.files import given_path
from fairseq_plugins.recipes import find_recipe
from fairseq_plugins.recipes.training import plan_trainings

FOLDERS = ("data-prep", "fairseq_plugins", "results", "scripts", "tests")
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in ROOT.glob(f"{folder}/**/*.md"))])
WITH_COMMANDS = [page for page in PAGES if PROGRAM in page.read_text(encoding="utf-8")]
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
PROGRAMS = ("bash", "cat", "seq", "xargs")
"""Real ones that lines of pages need; all others do nothing."""
RECORD = """#!/bin/bash
printf '%s\\0' "$@" >> "$RECORD"
printf '\\n' >> "$RECORD"
"""


def shell_code(text):
    """Blocks of code for a shell."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.M | re.S)
    return [block for language, block in blocks if language in ("", "bash")]


def blocks_of(page):
    """Shell code of a page: blocks, and commands within sentences, without those that stand for any."""
    text = page.read_text(encoding="utf-8")
    yield from shell_code(text)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    yield from (code for code in re.findall(r"`([^`]*)`", prose) if PROGRAM in code)


def typed(blocks, folder):
    """Arguments of every call of the console script when a shell runs the blocks. Other programs do nothing."""
    programs, record = folder / "bin", folder / "record"
    programs.mkdir()
    for name in PROGRAMS:
        (programs / name).symlink_to(shutil.which(name))
    (programs / PROGRAM).write_text(RECORD)
    (programs / PROGRAM).chmod(0o755)
    (folder / "nothing.sh").write_text("command_not_found_handle() { return 0; }\n")
    work = folder / "work"
    work.mkdir()
    for place in ROOT.glob("results/**/"):  # output goes to folders that are there
        (work / place.relative_to(ROOT)).mkdir(parents=True, exist_ok=True)
    record.touch()
    environment = {"PATH": str(programs), "BASH_ENV": str(folder / "nothing.sh"), "RECORD": str(record)}
    for block in blocks:
        code = re.sub(r"\[[^]\n]*(flags|DIR|N)\]|\.\.\.", "", block)  # optional words
        code = re.sub(r"(?<= )N\b", "1", code).replace(" ARCH", " lstm_lm_doc_ptb")
        subprocess.run(["/bin/bash", "-c", code], cwd=work, env=environment, capture_output=True, timeout=60, input=b"")
    return [call.split("\0") for call in record.read_text().split("\0\n") if call]


@pytest.fixture
def any_paths(monkeypatch):
    """Data and folders for results need not be there."""
    for module in (command_line, train):
        for name in ("data_folder", "output_file", "output_folder", "picture_file"):
            monkeypatch.setattr(module, name, given_path, raising=False)
    monkeypatch.setattr(command_line, "checkpoints_of", lambda path: [path])


def check(words, capsys):
    """Parse a command, and look up its recipe and systems."""
    name = next((name for name in COMMANDS if words[: len(name.split())] == name.split()), None)
    if name is None:
        type_command("", words)  # --help, or a group of commands
        return
    rest = words[len(name.split()) :]
    if not rest:  # a sentence names the command
        return
    command = load_command(name)
    parser = command.get_parser(f"{PROGRAM} {name}")
    try:
        args = command.parse(parser, rest)
    except SystemExit as ended:
        assert ended.code == 0, capsys.readouterr().err
        return
    if name == "train" and args.recipe.islower():
        type_command(name, [*rest, "--dry-run"])
    if name == "run" and args.recipe.islower():
        where = dict(data=str(args.data), save_dir=args.save_dir)
        plan_trainings(find_recipe(args.recipe), args.systems, [1], **where, more=args.more)


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_those_at_head(page, any_paths, tmp_path, capsys, monkeypatch):
    blocks = list(blocks_of(page))
    monkeypatch.chdir(tmp_path)
    lines = typed(blocks, tmp_path)
    assert lines or not any(re.search(rf"^\S*{PROGRAM} \w", block, re.M) for block in blocks)
    for words in lines:
        if "my_parts" not in words:  # those are run by test_own_parts.py
            check(words, capsys)


@every_page
def test_files_and_functions_exist(page):
    text = page.read_text(encoding="utf-8").replace("CORPUS", "ptb")
    for path in re.findall(rf"(?<![\w/.-])(?:{'|'.join(FOLDERS)})/[\w./-]*\w", text):
        assert path.startswith("results/") or (ROOT / path).exists(), path  # results: what commands write
    for module, names in re.findall(r"^(?:from|.*;\s*from) (\w[\w.]*) import ([\w, ]+)", text, re.M):
        for name in names.split(", "):
            assert hasattr(importlib.import_module(module), name), f"{module}.{name}"


@every_page
def test_code_for_a_shell_is_well_formed(page):
    for block in shell_code(page.read_text(encoding="utf-8")):
        read = subprocess.run(["bash", "-n"], input=block, text=True, capture_output=True)
        assert not read.stderr, block


def slugs(page):
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ +(.*?) *$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_page
def test_links_lead_to_a_file_and_a_heading(page):
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text(encoding="utf-8")):
        linked = page.parent / target if target else page
        assert linked.exists(), target
        assert not anchor or anchor in slugs(linked), f"{target}#{anchor}"
