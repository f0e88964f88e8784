"""Every corpus: results, errors, warnings, and what an interrupted run leaves."""

import contextlib
import errno
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from email.message import Message
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from preparation import main, sources, steps
from preparation.corpora import CORPORA
from preparation.corpora.language_models import PTB
from preparation.corpora.translation import Multi30k
from preparation.corpus import _num_cores, parse_options
from preparation.lines import DataError, decode_lines, note
from preparation.parallel_corpus import ParallelCorpus
from preparation.sources import damage_reported, is_sound, unpack
from preparation.steps import is_finished, splits_of
from preparation_runs import (
    REPOSITORY,
    binarised,
    binarised_text,
    fail,
    options_of,
    prepare,
    prepare_in_shell,
    snapshot,
    succeed,
)
from small_corpora import (
    LANGUAGES,
    SMALL_CORPORA,
    SPLITS,
    SmallCorpus,
    manythings_files,
    multi30k_files,
    ptb_files,
    tatoeba_files,
    write_corpus,
    write_files,
    zipped,
)
from small_corpora import PTB as SMALL_PTB

from fairseq_plugins.recipes import RECIPES

each_corpus = pytest.mark.parametrize(
    "small", SMALL_CORPORA, ids=lambda small: f"{small.corpus} {' '.join(small.options[:1])}".strip()
)


@pytest.fixture(scope="module", params=SMALL_CORPORA, ids=lambda small: f"{small.corpus} {small.result}")
def prepared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A small corpus that was prepared, in folders with spaces and a comma."""
    small: SmallCorpus = request.param
    cwd = tmp_path_factory.mktemp("with spaces, commas") / "x y"
    write_corpus(cwd / "from, here", small)
    options = [small.corpus, *small.options, "--from", "from, here", "--work", "my work, here"]
    done = succeed(*options, cwd=cwd)
    return SimpleNamespace(small=small, cwd=cwd, options=options, dest=cwd / "data-bin" / small.result, done=done)


def test_every_corpus_is_in_the_contract() -> None:
    folders = {path.parent.name for path in (REPOSITORY / "data-prep").glob("*/prepare.sh")}
    assert set(CORPORA) == {small.corpus for small in SMALL_CORPORA} == folders
    assert {path.parent.name for path in (REPOSITORY / "data-prep").glob("*/README.md")} == folders


def test_result(prepared: SimpleNamespace) -> None:
    small = prepared.small
    assert [path.name for path in prepared.dest.parent.iterdir()] == [small.result]
    files = set(snapshot(prepared.dest))
    assert {"prepared.txt", "preprocess.log"} <= files
    sides = sorted(name[5:-3] for name in files if re.fullmatch(r"dict\..*txt", name))
    assert len(sides) == 2 or sides == [""]
    for split in ["train", "valid", "test"]:
        of_split = {name for name in files if name.startswith(f"{split}.")}
        assert {name.rpartition(".")[2] for name in of_split} == {"bin", "idx"} and len(of_split) == 2 * len(sides)
    assert ("bpe.codes" in files) == (len(sides) == 2) == any(name.startswith("raw/test.") for name in files)
    assert str(prepared.cwd) not in (prepared.dest / "preprocess.log").read_text()
    assert "warning: EXPECTED_COUNTS=skip" in prepared.done.stderr
    assert ("text.json" in files) == (len(sides) == 1)
    data = {path.name: path for path in prepared.dest.iterdir() if re.search(r"^dict\.|\.(bin|idx)$", path.name)}
    digests = json.loads((prepared.dest / "digests.json").read_text())
    assert digests == {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in data.items()}
    table = (prepared.dest / "prepared.txt").read_text().splitlines()
    assert table[0].startswith(small.corpus) and table[0].endswith(", not checked")
    assert re.fullmatch("files: [0-9a-f]{16}", table[1])
    assert "\n".join(table[2:]) in prepared.done.stdout
    assert sum(" tokens with one end mark a line" in line for line in table) >= 3 * len(sides)
    assert f"data-bin/{small.result}" in prepared.done.stdout
    assert not list(prepared.cwd.rglob("*partial-*")) and not list(prepared.cwd.rglob("unpacked"))


def test_finished_result_is_left_alone(prepared: SimpleNamespace) -> None:
    before = snapshot(prepared.cwd)
    assert "already complete" in succeed(*prepared.options, cwd=prepared.cwd).stderr
    assert snapshot(prepared.cwd) == before


def test_finished_result_of_one_side_gets_the_record_of_its_text(prepared: SimpleNamespace) -> None:
    before = snapshot(prepared.cwd)
    if (prepared.dest / "dict.txt").exists():
        (prepared.dest / "text.json").unlink()
        assert "text.json is added" in succeed(*prepared.options, cwd=prepared.cwd).stderr
    assert snapshot(prepared.cwd) == before


def test_unchecked_result_does_not_pass_for_a_checked_one(prepared: SimpleNamespace) -> None:
    before = snapshot(prepared.cwd)
    message = fail(*prepared.options, cwd=prepared.cwd, check=True)
    assert "not checked" in message and "--dest" in message and snapshot(prepared.cwd) == before


def test_result_of_another_recipe_is_not_taken(prepared: SimpleNamespace) -> None:
    before, small = snapshot(prepared.cwd), prepared.small
    other = (*prepared.options, *small.other_option)
    if not small.other_option:
        another = "ptb" if small.corpus != "ptb" else "wikitext-2"
        other = (another, "--dest", prepared.dest)
    message = fail(*other, cwd=prepared.cwd)
    assert f"already holds '{small.corpus}" in message and "--dest" in message
    assert snapshot(prepared.cwd) == before


def test_result_of_fairseq_is_left_alone(prepared: SimpleNamespace, here: Path) -> None:
    shutil.copytree(prepared.dest, here / "mine")
    for path in (here / "mine").iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name in ("prepared.txt", "bpe.codes", "text.json"):
            path.unlink()
    before = snapshot(here / "mine")
    done = succeed(prepared.small.corpus, *prepared.small.options, "--dest", "mine", cwd=here)
    assert "left alone" in done.stderr and snapshot(here) == {f"mine/{name}": data for name, data in before.items()}


def test_stopped_run_goes_on_and_ends_the_same(
    prepared: SimpleNamespace, here: Path, fake_fairseq: dict[str, str]
) -> None:
    """fairseq fails; the steps before it are not repeated; an incomplete result is made again."""
    small = prepared.small
    write_corpus(here / "x", small)
    options = [small.corpus, *small.options, "--from", "x"]
    message = fail(*options, cwd=here, **fake_fairseq)
    assert "fairseq-preprocess failed, see downloads/" in message and "preprocess.log (out of memory)" in message
    dest = here / "data-bin" / small.result
    dest.mkdir(parents=True)
    (dest / "dict.txt").write_text("left 1\n")
    left = dest.with_name(f".{dest.name}.partial-1")
    left.mkdir()
    done = succeed(*options, "--dest", f"{dest}/", cwd=here)
    assert "is incomplete and will be made again" in done.stderr
    steps_done = re.findall(r"(\w+) is already complete", done.stderr)
    assert steps_done == [
        path.parent.name
        for path in sorted((here / "downloads").rglob("step.json"), key=lambda path: path.stat().st_mtime_ns)
    ]
    assert snapshot(dest) == snapshot(prepared.dest) and not left.exists()


@each_corpus
def test_small_corpus_is_not_taken_for_the_real_one(small: SmallCorpus, here: Path) -> None:
    write_corpus(here / "x", small)
    if not small.refused:
        assert not (here / "data-bin").exists()
        succeed(small.corpus, *small.options, "--from", "x", cwd=here, check=True)
        assert "not checked" not in (here / "data-bin" / small.result / "prepared.txt").read_text()
        return
    message = fail(small.corpus, *small.options, "--from", "x", cwd=here, check=True)
    assert re.search(small.refused, message)
    assert message.endswith(small.remedy) and small.remedy.endswith("pass the right files with --from DIR")


@each_corpus
@pytest.mark.parametrize("damage", ["truncated", "noise"])
def test_damaged_archive(small: SmallCorpus, damage: str, here: Path) -> None:
    name = next(iter(small.files()))
    path = write_corpus(here / "x", small) / name
    content = path.read_bytes()
    middle = len(content) // 2
    noise = bytes(byte ^ 0x55 for byte in content[middle : middle + 9])
    path.write_bytes(content[:middle] if damage == "truncated" else content[:middle] + noise + content[middle + 9 :])
    message = fail(small.corpus, *small.options, "--from", "x", cwd=here)
    assert f"x/{name}" in message
    if "not UTF-8 text" not in message or damage == "truncated":  # bytes that unpack to other ones are read first
        assert f"x/{name} is truncated or damaged" in message and "--from DIR" in message


@each_corpus
def test_missing_file(small: SmallCorpus, here: Path) -> None:
    name = next(iter(small.files()))
    (write_corpus(here / "x", small) / name).unlink()
    message = fail(small.corpus, *small.options, "--from", "x", cwd=here)
    missing = name.removesuffix(".gz").rpartition("/")[2]
    assert "x has no " in message and missing in message and "put " in message and "--from" in message
    (here / "nowhere").touch()
    message = fail(small.corpus, *small.options, "--from", "nowhere", cwd=here)
    assert "--from nowhere is not a directory" in message


@each_corpus
def test_no_mirror_left(small: SmallCorpus, here: Path, server: SimpleNamespace) -> None:
    mirrors = ["--mirror", f"{server.url}/a", "--mirror", f"{server.url}/b/", "--mirror", "nonsense"]
    message = fail(small.corpus, *small.options, *mirrors, cwd=here)
    assert "--from DIR" in message
    if small.download:
        assert small.download in message and "by hand" in message
        assert {f"/a/{small.download}", f"/b/{small.download}"} <= set(server.requests)
    assert not [path for path in here.rglob("*") if path.is_file() and path.name != ".lock"]


@each_corpus
def test_foreign_folder_is_not_touched(small: SmallCorpus, here: Path) -> None:
    (here / "mine").mkdir()
    (here / "mine" / "thesis.tex").write_text("precious")
    message = fail(small.corpus, *small.options, "--dest", "mine", cwd=here)
    assert "did not write" in message and "--dest" in message
    assert "is not a directory" in fail(small.corpus, *small.options, "--dest", "mine/thesis.tex", cwd=here)
    assert snapshot(here) == {"mine/thesis.tex": b"precious"}


@each_corpus
def test_sources_are_not_replaced(small: SmallCorpus, here: Path) -> None:
    """The folder of the first step may be where somebody has the files."""
    probe = here / "probe"
    write_corpus(probe / "x", small)
    succeed(small.corpus, *small.options, "--from", "x", "--work", "w", cwd=probe)
    step = next(path.parent.relative_to(probe) for path in probe.rglob("step.json") if path.parent.name == "text")
    before = snapshot(write_corpus(here / step, small))
    message = fail(small.corpus, *small.options, "--from", step, "--work", "w", "--dest", "d", cwd=here)
    assert "holds files of the corpus: pass another --work" in message and snapshot(here / step) == before


def test_second_run_waits_for_the_first(prepared: SimpleNamespace, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = prepared.small
    write_corpus(here / "x", small)
    (here / "work").mkdir()
    first = steps.locked(here / "work")
    first.__enter__()

    def finish_the_first_run(message: str) -> None:
        note(message)
        if message.startswith("waiting"):
            shutil.copytree(prepared.dest, here / "data-bin" / small.result)
            first.__exit__(None, None, None)

    monkeypatch.setattr(steps, "note", finish_the_first_run)
    done = succeed(small.corpus, *small.options, "--from", "x", "--work", "work", cwd=here)
    assert "waiting for another run that works in work\n" in done.stderr and "already complete" in done.stderr
    assert [path.name for path in (here / "work").iterdir()] == [".lock"]


def test_runs_in_two_folders_make_one_result(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one waits until the result of the first is there, and takes it."""
    small = SMALL_CORPORA[0]
    write_corpus(here / "x", small)
    options = [small.corpus, *small.options, "--from", "x", "--dest", "result"]
    succeed(*options, "--work", "one", cwd=here)
    made = snapshot(here / "result")
    (here / "result").rename(here / "kept")
    first = steps.reserved(here / "result")
    first.__enter__()

    def finish_the_first_run(message: str) -> None:
        note(message)
        if message.startswith("waiting for another run that makes"):
            (here / "kept").rename(here / "result")
            first.__exit__(None, None, None)

    monkeypatch.setattr(steps, "note", finish_the_first_run)
    done = succeed(*options, "--work", "two", cwd=here)
    assert "already complete" in done.stderr and "binarising" not in done.stderr
    assert snapshot(here / "result") == made and not (here / ".result.lock").exists()


@each_corpus
def test_result_with_an_empty_record(small: SmallCorpus, here: Path) -> None:
    message = fail_with_record(small, here, "")
    assert "other/prepared.txt does not say what other holds: delete it or pass another --dest" in message


def fail_with_record(small: SmallCorpus, here: Path, record: str) -> str:
    """What is said of a result with another recipe."""
    (here / "other").mkdir()
    (here / "other" / "prepared.txt").write_text(record)
    return fail(small.corpus, *small.options, "--from", "x", "--dest", "other", cwd=here)


@each_corpus
def test_help(small: SmallCorpus, here: Path) -> None:
    done = succeed(small.corpus, "--help", cwd=here)
    flags = ["--from", "--mirror", "--dest", "--work", "--workers"]
    flags += ["--pair", "--bpe", "--merges", "--max-ratio", "--threshold"] if "--merges" in small.options else []
    assert done.stdout.startswith("usage: prepare.sh") and all(f"  {flag} " in done.stdout for flag in flags)
    assert "EXPECTED_COUNTS=skip" in done.stdout and done.stderr == "" and not list(here.iterdir())


@each_corpus
@pytest.mark.parametrize(
    "options",
    [
        "--frmo=x",
        "unknown_pair x",
        "--from",
        "--mirror --dest x",
        "--dest=",
        "--workers 0",
        "--workers -1",
        f"--workers {10**19}",
    ],
)
def test_usage_error(small: SmallCorpus, options: str, here: Path) -> None:
    done = prepare(small.corpus, *small.options, *options.split(), cwd=here)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.startswith("usage: ")
    named = re.split("[ =]", options)[0]
    assert named in done.stderr.splitlines()[-1]
    assert not list(here.iterdir())


def test_wrong_value_of_expected_counts(here: Path) -> None:
    done = prepare("ptb", cwd=here, EXPECTED_COUNTS="no")
    assert done.returncode == 2 and "EXPECTED_COUNTS is check or skip, not no" in done.stderr


@pytest.mark.parametrize("arguments", [[], ["penn"]])
def test_unknown_corpus(arguments: list[str], here: Path) -> None:
    done = prepare(*(arguments or [""]), cwd=here)
    assert done.returncode == 2 and "reuters21578" in done.stderr


def test_fairseq_is_missing(here: Path) -> None:
    message = fail("ptb", cwd=here, PATH=str(here))
    assert "fairseq-preprocess is not on PATH: activate the environment" in message


COMMANDS = sorted({recipe.corpus for recipe in RECIPES.values()} - {RECIPES["presets"].corpus})


@pytest.mark.parametrize("command", COMMANDS)
def test_the_script_takes_its_arguments(command: str) -> None:
    bash, script, *arguments = shlex.split(command)
    corpus = script.removeprefix("data-prep/").removesuffix("/prepare.sh")
    assert bash == "bash" and parse_options(CORPORA[corpus], arguments).check
    assert corpus not in ("gigaword", "wsj") or "--from" in arguments  # which are not to be downloaded


PAIRS = sorted(name for name, corpus in CORPORA.items() if isinstance(corpus, ParallelCorpus))


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("dictionaries", ["two", "one"])
def test_the_next_command_names_a_recipe_of_such_pairs(name: str, dictionaries: str) -> None:
    corpus = CORPORA[name]
    joined = ["--joined-dictionary"] if dictionaries == "one" else []
    places = ["--from", "."] if name == "gigaword" else []
    pair = corpus.pairs[:1] if len(corpus.pairs) > 1 else []
    options = parse_options(corpus, [*pair, *joined, *places])
    told = corpus.report(options)
    beside = "with bpe.codes and the references in raw"
    assert told.startswith(f"The binarised corpus is in {options.dest}, {beside}. Next:")
    recipe = re.search(r"cli\.train (\w+) doc", told)[1]
    flags = RECIPES[recipe].settings("doc")
    shares_all = flags.get("share_embeddings") == "all"
    assert shares_all == (dictionaries == "one")
    assert RECIPES[recipe].compared_by == ("rouge" if "title" in corpus.languages else "bleu")


def test_interrupted_step_leaves_the_old_one(tmp_path: Path) -> None:
    def fill(text: str, folder: Path) -> None:
        (folder / "file").write_text(text)
        if text == "bad":
            raise DataError("no")

    target = tmp_path / "step"
    steps.run_step(target, {"a": 1}, partial(fill, "good"))
    steps.run_step(target, {"a": 1}, partial(fill, "never called"))
    with pytest.raises(DataError):
        steps.run_step(target, {"a": 2}, partial(fill, "bad"))
    assert (target / "file").read_text() == "good" and list(tmp_path.iterdir()) == [target]
    steps.run_step(target, {"a": 2}, partial(fill, "better"))
    assert (target / "file").read_text() == "better"


@pytest.mark.parametrize("name", ["thesis.tex", "train.txt", "text8", "train.txt.part", "inside/train.txt"])
def test_foreign_folder_is_not_replaced(name: str, tmp_path: Path) -> None:
    before = snapshot(write_files(tmp_path / "text", {name: b"precious"}))
    with pytest.raises(DataError, match="text holds something that this script did not write: .* --work"):
        steps.run_step(tmp_path / "text", {}, lambda folder: None)
    assert snapshot(tmp_path / "text") == before


def test_empty_folder_becomes_a_step(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    steps.run_step(tmp_path / "text", {}, lambda folder: (folder / "new").touch())
    assert {file.name for file in (tmp_path / "text").iterdir()} == {"new", "step.json"}


def test_a_mount_point_is_no_destination(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be replaced by renaming."""
    monkeypatch.setattr(steps.os.path, "ismount", lambda path: path == tmp_path)
    steps.check_writable(tmp_path / "inside")
    with pytest.raises(DataError, match="is a mount point, .*: pass a folder in it as --dest"):
        steps.check_writable(tmp_path)


def test_result_is_made_by_one_run_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is removed with the run that held it, and the one that waited holds another."""
    first = steps.reserved(tmp_path / "result")
    first.__enter__()
    told = []

    def end_the_first_run(message: str) -> None:
        told.append(message)
        first.__exit__(None, None, None)

    monkeypatch.setattr(steps, "note", end_the_first_run)
    with steps.reserved(tmp_path / "result"):
        assert told == [f"waiting for another run that makes {tmp_path / 'result'}"]
        assert (tmp_path / ".result.lock").exists()
    assert list(tmp_path.iterdir()) == []


def test_binaries_of_another_pair_are_not_replaced(tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        write_files(tmp_path / "mine", {f"{split}.en-fr.{end}": b"1" for end in ("fr.bin", "fr.idx", "en.bin")})
    write_files(tmp_path / "mine", {"dict.en.txt": b"a 1\n", "dict.fr.txt": b"b 1\n"})
    before = snapshot(tmp_path)
    options = options_of(Multi30k(), "de-en", "--dest", tmp_path / "mine")
    with pytest.raises(
        DataError, match="mine holds other binaries than multi30k de-en: delete it or pass another --dest"
    ):
        is_finished(Multi30k(), "multi30k de-en, 3 merges", options)
    assert snapshot(tmp_path) == before


def test_a_folder_that_is_replaced_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, removed = tmp_path / "text", []
    write_files(target, {"old": b"old"})
    remove = shutil.rmtree

    def rmtree(path: Path, **options: object) -> None:
        removed.append(Path(path).name)
        remove(path, **options)

    monkeypatch.setattr(steps.shutil, "rmtree", rmtree)
    with pytest.raises(KeyboardInterrupt), steps.new_folder(target) as folder:
        (folder / "new").touch()
        raise KeyboardInterrupt
    assert [path.name for path in target.iterdir()] == ["old"]
    with steps.new_folder(target) as folder:
        (folder / "new").touch()
    assert [path.name for path in target.iterdir()] == ["new"] and "text" not in removed
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_sets_of_tatoeba_are_not_taken_for_each_other(here: Path) -> None:
    write_files(here / "x", manythings_files())
    write_files(here / "y", tatoeba_files())
    succeed("tatoeba", "en", "--from", "x", cwd=here)
    assert "already complete" in succeed("tatoeba", "en", "--from", "x", cwd=here).stderr
    done = prepare("tatoeba", "en", "--from", "y", cwd=here)
    assert done.returncode == 1 and "already holds 'tatoeba en, split of deu.txt" in done.stderr
    succeed("tatoeba", "en", "--from", "y", "--dest", "z", cwd=here)
    write_files(here / "y", {"test.en.gz": b"Another set.\n"})
    assert "z was made from other files than those in y" in fail(
        "tatoeba", "en", "--from", "y", "--dest", "z", cwd=here
    )


@pytest.mark.parametrize("place", ["other", "work"])
def test_a_result_is_not_taken_for_one_of_other_files(place: str, here: Path) -> None:
    """They are those that were named, or those in the work folder."""
    texts = {f"{split}.txt": b"a b\n" for split in SPLITS}
    write_files(here / "x", texts)
    options = ["ptb", "--work", "work"]
    succeed(*options, "--from", "x", cwd=here)
    for known in ("x", "nowhere", "work"):  # files that are gone tell nothing
        assert "already complete" in succeed(*options, "--from", known, cwd=here).stderr
    write_files(here / place, {**texts, "test.txt": b"b a\n"})
    before = snapshot(here)
    message = fail(*options, *(["--from", place] if place == "other" else []), cwd=here)
    assert message.endswith(
        f"data-bin/ptb was made from other files than those in {place}: delete it or pass another --dest"
    )
    assert snapshot(here) == before
    record = here / "data-bin/ptb/prepared.txt"
    lines = record.read_text().splitlines()
    assert lines[1].startswith("files: ")
    record.write_text("\n".join([lines[0], *lines[2:]]))  # as it was before there were digests
    assert "already complete" in succeed(*options, "--from", place, cwd=here).stderr


@pytest.mark.parametrize("name", ["dict.en.txt", "train.de-en.de.bin", "test.de-en.en.idx", "flickr.de-en.de.bin"])
@pytest.mark.parametrize("damage", ["lacks", "has an empty", "has another"])
def test_a_result_that_lost_a_file_is_not_complete(name: str, damage: str, tmp_path: Path) -> None:
    splits = ("train", "valid", "test", "flickr")
    result = tmp_path / "result"
    binaries = [f"{split}.de-en.{side}.{end}" for split in splits for side in LANGUAGES for end in ("bin", "idx")]
    names = [*binaries, "dict.de.txt", "dict.en.txt"]
    write_files(result, {each: b"1" for each in names})
    (result / "digests.json").write_text(json.dumps(dict.fromkeys(names, hashlib.sha256(b"1").hexdigest())))
    counts = "".join(f"{split}.{side}: 3 lines, 9 tokens\n" for split in splits for side in LANGUAGES)
    (result / "prepared.txt").write_text(f"a recipe\n{counts}")
    arguments = Multi30k(), "a recipe", options_of(Multi30k(), "de-en", "--dest", result)
    assert is_finished(*arguments)
    told = f"result {damage} {name}"
    if damage == "lacks":
        (result / name).unlink()
    elif damage == "has an empty":
        (result / name).write_text("")
    else:
        (result / name).write_text("2")
        told = f"result/{name} is not as it was when digests.json was written"
    with pytest.raises(DataError, match=f"{told}: delete it to prepare it again"):
        is_finished(*arguments)


def test_binaries_of_fairseq_are_not_empty(tmp_path: Path) -> None:
    names = ["dict.txt", *(f"{split}.{end}" for split in SPLITS for end in ("bin", "idx"))]
    write_files(tmp_path / "mine", {name: b"" if name == "valid.bin" else b"1" for name in names})
    with pytest.raises(DataError, match="mine has an empty valid.bin: delete it or pass another --dest"):
        is_finished(PTB, "ptb", options_of(PTB, "--dest", tmp_path / "mine"))


def test_text_that_lost_lines_is_not_binarised(here: Path) -> None:
    write_files(here / "x", tatoeba_files())
    options = ["tatoeba", "en", "--from", "x"]
    succeed(*options, cwd=here)
    text = here / "downloads/tatoeba/en/tokens/train.en"
    text.write_text("".join(text.read_text().splitlines(keepends=True)[:-1]))
    message = fail(*options, "--dest", "other", cwd=here)
    assert "tokens/train.en has 59 lines, not the 60 that were written: delete downloads/tatoeba/en/tokens" in message


def test_a_dictionary_without_words_is_no_result(here: Path) -> None:
    write_files(here / "x", tatoeba_files())
    message = fail("tatoeba", "en", "--from", "x", "--threshold", 100000, cwd=here)
    assert message == "error: no word of train is left for dict.txt: give a smaller --threshold"


@pytest.mark.parametrize("dest", ["work", "./work/", "link", "."])
def test_the_work_folder_is_not_in_the_destination(dest: str, here: Path) -> None:
    (here / "link").symlink_to("work")
    done = prepare("tatoeba", "en", "--from", "x", "--dest", dest, "--work", "work", cwd=here)
    assert done.returncode == 2 and "the folder of --work work, or holds it: pass another --dest" in done.stderr
    assert not (here / "work").exists()


def test_folders_that_are_none_are_told_with_the_remedy(here: Path) -> None:
    write_files(here / "x", manythings_files())
    (here / "file").touch()
    (here / "loop").symlink_to("loop")
    options = ["tatoeba", "en", "--from", "x"]
    for work in ("file", "loop", "loop/inside"):
        message = fail(*options, "--work", work, cwd=here)
        assert message.startswith(f"error: {work}: nothing can be written there (") and message.endswith(
            "another --work"
        )
    done = prepare(*options, "--dest", "loop", cwd=here)
    assert done.returncode == 2 and done.stderr.endswith("/loop is a symbolic link to itself: pass another --dest\n")
    assert "loop/inside: nothing can be written there (" in fail(*options, "--dest", "loop/inside", cwd=here)


def test_a_full_disk_is_told_with_the_remedy(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write_files(here / "x", manythings_files())
    monkeypatch.setattr(main, "make_steps", fill)
    message = fail("tatoeba", "en", "--from", "x", cwd=here)
    remedy = "make room and run again, or pass another --work and --dest"
    assert message == f"error: a file: No space left on device: {remedy}"


def test_any_flipped_bit_of_an_archive_is_damage_or_nothing(tmp_path: Path) -> None:
    text = b"Go.\tGeh.\n" * 3
    content = zipped({"deu.txt": text})
    for place in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        (tmp_path / "a.zip").write_bytes(damaged)
        sound = is_sound(tmp_path / "a.zip")
        try:
            unpack(tmp_path / "a.zip", {"deu.txt"}, tmp_path)
        except DataError:
            continue
        assert sound and (tmp_path / "deu.txt").read_bytes() == text


def test_an_error_of_the_disk_is_no_damage() -> None:
    with pytest.raises(OSError, match="No space left"), damage_reported("a.zip"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(DataError, match="a.zip is truncated or damaged"), damage_reported("a.zip"):
        raise zipfile.BadZipFile


def test_a_full_disk_is_no_failure_of_a_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = io.BytesIO(b"the file")
    answer.headers = Message()  # type: ignore[attr-defined]
    asked = []
    monkeypatch.setattr(sources.urllib.request, "urlopen", lambda *_, **__: asked.append(1) or answer)
    with pytest.raises(DataError, match="full.part: No space left on device: make room and run again"):
        Path(tmp_path / "full.part").symlink_to("/dev/full")
        sources.download([("http://mirror/full", tmp_path / "full")], lambda path: True)
    assert asked == [1]


@pytest.mark.parametrize("dest", [".", "link"])
def test_a_folder_may_be_named_in_any_way(dest: str, here: Path) -> None:
    write_files(here / "x", manythings_files())
    (here / "real").mkdir()
    (here / "link").symlink_to("real")
    cwd = here / "real" if dest == "." else here
    work, source = here / "work", here / "x"
    succeed("tatoeba", "en", "--from", source, "--work", work, "--dest", dest, cwd=cwd)
    assert (here / "real/prepared.txt").is_file() and (here / "link").is_symlink()


def test_a_place_that_cannot_be_written_is_told_before_the_work(here: Path) -> None:
    write_files(here / "x", manythings_files())
    (here / "file").touch()
    done = prepare("tatoeba", "en", "--from", "x", "--dest", "file/inside", cwd=here)
    assert done.returncode == 1 and "file/inside: nothing can be written there" in done.stderr
    assert not (here / "downloads").exists()


def test_damaged_records_are_told(here: Path) -> None:
    write_files(here / "x", manythings_files())
    options = ["tatoeba", "en", "--from", "x"]
    succeed(*options, cwd=here)
    (here / "data-bin/tatoeba.en/prepared.txt").write_bytes(b"\xff\xfe")
    done = prepare(*options, cwd=here)
    assert done.returncode == 1 and "prepared.txt does not say what" in done.stderr
    record = next((here / "downloads").rglob("step.json"))
    record.write_bytes(b"\xff")
    assert "is already complete" in succeed(*options, "--dest", "other", cwd=here).stderr
    (record.parent / "splits.json").write_text("")
    with pytest.raises(DataError, match="splits.json is damaged: delete"):
        splits_of(record.parent)


def test_no_more_processes_than_cores_are_started() -> None:
    assert options_of(Multi30k(), "de-en", "--workers", "100000").workers == _num_cores()


def test_a_mirror_goes_with_a_download(here: Path) -> None:
    done = prepare("multi30k", "de-en", "--from", "x", "--mirror", "http://mirror", cwd=here)
    assert done.returncode == 2 and "--mirror is a place to download from, and --from downloads nothing" in done.stderr


def test_lines_that_end_with_cr_alone_are_refused() -> None:
    assert list(decode_lines(io.BytesIO(b"a\r\nb\rc\r\n"), "x")) == ["a", "b c"]
    with pytest.raises(DataError, match="x: its lines end with CR alone: convert them to LF"):
        list(decode_lines(io.BytesIO(b"a\rb\rc\r"), "x"))


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_text(here: Path) -> None:
    write_files(here / "my files", ptb_files())
    done = prepare_in_shell("ptb", "--from", "my files", cwd=here)
    assert done.returncode == 0, done.stderr
    assert "fairseq_plugins.cli.train reduced doc data-bin/ptb --save-dir checkpoints/ptb" in done.stdout
    text = " ".join(word for line in binarised_text(here / "data-bin" / "ptb", "train") for word in line)
    assert text == " ".join(SMALL_PTB["train"].decode().replace("\n", "</s>").split())
    here_too = succeed("ptb", "--from", "my files", "--dest", "here too", cwd=here)
    assert "already complete" in here_too.stderr  # its text
    results = [snapshot(here / "data-bin" / "ptb"), snapshot(here / "here too")]
    assert all(results[0][name] == results[1][name] for name in results[0] if name != "preprocess.log")


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_pairs(here: Path) -> None:
    write_files(here / "my files", multi30k_files())
    done = prepare_in_shell("multi30k", "de-en", "--from", "my files", "--merges", 20, cwd=here)
    assert done.returncode == 0, done.stderr
    for language in LANGUAGES:
        assert len(binarised(here / "data-bin" / "multi30k.de-en", "train", "de-en", language)) == 60


def test_exit_status(here: Path) -> None:
    done = prepare_in_shell("ptb", "--from", "nowhere", cwd=here)
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("error: --from nowhere is not a directory")
    done = prepare_in_shell("tatoeba", "de-fr", cwd=here)
    assert done.returncode == 2 and "'de-fr' is neither a language nor two of which one is en" in done.stderr


@pytest.mark.parametrize("script", sorted(REPOSITORY.glob("data-prep/*/prepare.sh")), ids=lambda path: path.parent.name)
def test_python_is_missing(script: Path, here: Path) -> None:
    for tool in ["bash", "dirname", "readlink"]:
        (here / tool).symlink_to(next(path for path in [Path("/bin") / tool, Path("/usr/bin") / tool] if path.exists()))
    done = subprocess.run([here / "bash", script], env={"PATH": str(here)}, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "error: python3 is not on PATH: activate the environment that fairseq is installed in\n"


def test_packages_are_missing(here: Path) -> None:
    script = REPOSITORY / "data-prep" / "prepare.py"
    done = subprocess.run([sys.executable, "-S", script, "ptb"], cwd=here, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.fullmatch(r"error: No module named '\w+': activate the environment .* is installed in\n", done.stderr)


@pytest.mark.slow
def test_path_that_the_output_cannot_show(here: Path) -> None:
    """The result is there, and so is the status."""
    write_files(here / "my files", ptb_files())
    variables = {"PYTHONIOENCODING": "ascii", "PYTHONSAFEPATH": "1"}
    done = prepare_in_shell("ptb", "--from", "my files", "--dest", "dü", cwd=here, **variables)
    assert done.returncode == 0 and r"The binarised corpus is in d\xfc" in done.stdout, done.stderr
    assert (here / "dü/prepared.txt").is_file()


def assert_nothing_runs_in(folder: Path) -> None:
    """No process that a killed run started outlives it for long."""
    for _ in range(200):
        places = []
        for link in Path("/proc").glob("[0-9]*/cwd"):
            with contextlib.suppress(OSError):
                places.append(os.readlink(link))
        if not any(place.startswith(str(folder)) for place in places):
            return
        time.sleep(0.05)
    raise AssertionError(f"something still runs in {folder}")


@pytest.mark.slow
def test_kill_and_run_again(tmp_path: Path) -> None:
    options = ["de-en", "--from", "../x", "--merges", 60, "--workers", 2]
    command = ["bash", REPOSITORY / "data-prep" / "multi30k" / "prepare.sh", *map(str, options)]
    write_files(tmp_path / "x", multi30k_files(num_lines=4000))
    for name in ["undisturbed", "killed"]:
        (tmp_path / name).mkdir()
    env = {**os.environ, "EXPECTED_COUNTS": "skip"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    partial_folders = ["downloads/*/*/.text.*", "downloads/*/*/.tokens.*", "downloads/*/*/.subwords.*", "data-bin/.*"]
    for pattern in partial_folders:
        process = subprocess.Popen(command, cwd=tmp_path / "killed", env=env, **quiet)
        while not list((tmp_path / "killed").glob(pattern)):
            assert process.poll() is None, f"{pattern} never appeared"
            time.sleep(0.002)
        time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert_nothing_runs_in(tmp_path / "killed")
        assert not (tmp_path / "killed" / "data-bin" / "multi30k.de-en").exists()
    for name in ["undisturbed", "killed"]:
        succeed("multi30k", *options, cwd=tmp_path / name)
    results = [snapshot(tmp_path / name) for name in ["undisturbed", "killed"]]
    assert set(results[0]) == set(results[1])
    for name in results[0]:
        assert results[0][name] == results[1][name], name
