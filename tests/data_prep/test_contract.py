"""Every corpus: results, errors, warnings, and what an interrupted run leaves."""

import contextlib
import errno
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from paths import ROOT
from preparation import main, steps
from preparation.corpora import CORPORA
from preparation.corpora.translation import Multi30k
from preparation.corpus import _num_cores
from preparation.lines import DataError, note
from preparation.parallel_corpus import ParallelCorpus
from preparation_runs import binarised_text, fail, options_of, prepare, prepare_in_shell, snapshot, succeed
from small_corpora import (
    LANGUAGES,
    PTB,
    SMALL_CORPORA,
    SPLITS,
    manythings_files,
    multi30k_files,
    named,
    ptb_files,
    write_files,
)

from fairseq_plugins.recipes import RECIPES

each_corpus = pytest.mark.parametrize("small", SMALL_CORPORA, ids=lambda small: f"{small.corpus} {small.result}")


@pytest.fixture(scope="module", params=SMALL_CORPORA, ids=lambda small: f"{small.corpus} {small.result}")
def prepared(request, tmp_path_factory):
    """A small corpus that was prepared, in folders with spaces and a comma."""
    small = request.param
    cwd = tmp_path_factory.mktemp("with spaces, commas") / "x y"
    write_files(cwd / "from, here", small.files)
    options = [small.corpus, *small.options, "--from", "from, here", "--work", "my work, here"]
    done = succeed(*options, cwd=cwd)
    return SimpleNamespace(small=small, cwd=cwd, options=options, dest=cwd / "data-bin" / small.result, done=done)


def test_every_corpus_is_in_the_contract():
    folders = {path.parent.name for path in (ROOT / "data-prep").glob("*/prepare.sh")}
    assert set(CORPORA) == {small.corpus for small in SMALL_CORPORA} == folders
    assert {path.parent.name for path in (ROOT / "data-prep").glob("*/README.md")} == folders


def test_result(prepared):
    small = prepared.small
    assert [path.name for path in prepared.dest.parent.iterdir()] == [small.result]
    files = set(snapshot(prepared.dest))
    assert {"prepared.txt", "preprocess.log"} <= files
    sides = sorted(name[5:-3] for name in files if re.fullmatch(r"dict\..*txt", name))
    assert len(sides) == 2 or sides == [""]
    for split in ["train", "valid", "test"]:
        of_split = {name for name in files if name.startswith(f"{split}.")}
        assert {name.rpartition(".")[2] for name in of_split} == {"bin", "idx"} and len(of_split) == 2 * len(sides)
    record = json.loads((prepared.dest / "text.json").read_text())
    assert ("bpe.codes" in files) == (record.get("subwords") == "bpe.codes")
    assert (len(sides) == 2) == any(name.startswith("raw/test.") for name in files)
    assert str(prepared.cwd) not in (prepared.dest / "preprocess.log").read_text()
    assert "warning: EXPECTED_COUNTS=skip" in prepared.done.stderr
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


def test_a_result_is_left_alone(prepared):
    """Also where another one is asked for: one that is checked, one of other options, one of another corpus."""
    before, small = snapshot(prepared.cwd), prepared.small
    assert "already complete" in succeed(*prepared.options, cwd=prepared.cwd).stderr
    message = fail(*prepared.options, cwd=prepared.cwd, check=True)
    assert "not checked" in message and "--dest" in message
    other = (*prepared.options, *small.other_option)
    if not small.other_option:
        other = ("ptb" if small.corpus != "ptb" else "wikitext-2", "--dest", prepared.dest)
    message = fail(*other, cwd=prepared.cwd)
    assert f"already holds '{small.corpus}" in message and "--dest" in message
    assert snapshot(prepared.cwd) == before


def test_stopped_run_resumes_and_ends_the_same(prepared, here, fake_fairseq):
    """fairseq fails; the steps before it are not repeated; an empty folder is filled."""
    small = prepared.small
    write_files(here / "x", small.files)
    options = [small.corpus, *small.options, "--from", "x"]
    message = fail(*options, cwd=here, **fake_fairseq)
    assert "fairseq-preprocess failed, see downloads/" in message and "preprocess.log (out of memory)" in message
    dest = here / "data-bin" / small.result
    dest.mkdir(parents=True)
    left = dest.with_name(f".{dest.name}.partial-1")
    left.mkdir()
    done = succeed(*options, "--dest", f"{dest}/", cwd=here)
    records = sorted((here / "downloads").rglob("step.json"), key=lambda path: path.stat().st_mtime_ns)
    assert re.findall(r"(\w+) is already complete", done.stderr) == [path.parent.name for path in records]
    assert snapshot(dest) == snapshot(prepared.dest) and not left.exists()


@each_corpus
def test_wrong_and_missing_files(small, here):
    """A small corpus is not taken for the real one."""
    write_files(here / "x", small.files)
    options = [small.corpus, *small.options, "--from", "x"]
    if small.refused:
        message = fail(*options, cwd=here, check=True)
        assert re.search(small.refused, message) and ": pass the right files with --from DIR" in message
    else:
        succeed(*options, "--dest", "new/deeper/checked", cwd=here, check=True)
        assert "not checked" not in (here / "new/deeper/checked/prepared.txt").read_text()
    name = next(iter(small.files))
    (here / "x" / name).unlink()
    missing = re.escape(name.removesuffix(".gz").rpartition("/")[2])
    assert re.search(rf"x.* has no .*{missing}.*: put .*--from", fail(*options, cwd=here))


@each_corpus
@pytest.mark.parametrize("damage", ["truncated", "noise"])
def test_damaged_file(small, damage, here):
    name = next(iter(small.files))
    path = write_files(here / "x", small.files) / name
    content = path.read_bytes()
    middle = len(content) // 2
    noise = bytes(byte ^ 0x55 for byte in content[middle : middle + 9])
    path.write_bytes(content[:middle] if damage == "truncated" else content[:middle] + noise + content[middle + 9 :])
    message = fail(small.corpus, *small.options, "--from", "x", cwd=here)
    assert f"x/{name}" in message
    if "not UTF-8 text" not in message or damage == "truncated":  # bytes that unpack to other ones are read first
        assert f"x/{name} is truncated or damaged" in message and "--from DIR" in message


@each_corpus
def test_no_mirror_left(small, here, server):
    mirrors = ["--mirror", f"{server.url}/a", "--mirror", f"{server.url}/b/", "--mirror", "nonsense"]
    message = fail(small.corpus, *small.options, *mirrors, cwd=here)
    assert "--from DIR" in message
    if small.download:
        assert small.download in message and "by hand" in message
        assert {f"/a/{small.download}", f"/b/{small.download}"} <= set(server.requests)
    assert not [path for path in here.rglob("*") if path.is_file() and path.name != ".lock"]


@pytest.mark.parametrize("corpus", CORPORA)
def test_help(corpus, here):
    done = succeed(corpus, "--help", cwd=here)
    flags = ["--from", "--mirror", "--dest", "--work", "--workers"]
    if isinstance(CORPORA[corpus], ParallelCorpus):
        flags += ["--subwords", "--merges", "--min-length", "--max-ratio", "--threshold"]
    assert done.stdout.startswith("usage: prepare.sh") and all(f"  {flag} " in done.stdout for flag in flags)
    assert "EXPECTED_COUNTS=skip" in done.stdout and done.stderr == "" and not list(here.iterdir())
    runs_moses = isinstance(CORPORA[corpus], ParallelCorpus) and corpus not in ("gigaword", "own")
    assert ("tokenise by Moses" in " ".join(done.stdout.split())) == runs_moses
    pair = CORPORA[corpus].pairs[:1] if isinstance(CORPORA[corpus], ParallelCorpus) else []
    assert options_of(CORPORA[corpus], *pair, "--workers", "100000").workers == _num_cores()


PLACES = [  # options, the error
    ("--dest mine", "mine holds files that this script did not write: pass another --dest"),
    ("--dest mine/thesis.tex", "is not a directory: pass another --dest"),
    ("--dest mine/thesis.tex/in", r"thesis.tex/in: nothing can be written there \(.*\): pass another --dest"),
    ("--dest pair", "pair holds files that this script did not write: pass another --dest"),
    ("--dest mount", "mount is a mount point, which cannot be replaced: pass a folder in it as --dest"),
    ("--dest other", "prepared.txt does not say what other holds: delete it or pass another --dest"),
    ("--dest loop/inside", r"loop/inside: nothing can be written there \("),
    ("--dest loop", "/loop is a symbolic link to itself: pass another --dest$"),
    ("--dest work --work work", "the folder of --work work, or holds it: pass another --dest"),
    ("--dest ./work/ --work work", "the folder of --work work, or holds it: pass another --dest"),
    ("--dest link --work work", "the folder of --work work, or holds it: pass another --dest"),
    ("--dest . --work work", "the folder of --work work, or holds it: pass another --dest"),
    ("--from file", "--from file is not a directory"),
    ("--from downloads/ptb/text", "would be replaced, but holds the corpus or --dest: pass another --work"),
    ("--from corpus --dest downloads/ptb/text/bin", "would be replaced, but holds the corpus or --dest"),
    ("--from corpus --work own", "text holds something that this script did not write: .* --work"),
    ("--work file", r"^error: file: nothing can be written there \(.*\): pass another --work$"),
    ("--work loop", r"^error: loop: nothing can be written there \(.*\): pass another --work$"),
    ("--work loop/inside", r"^error: loop/inside: nothing can be written there \(.*\): pass another --work$"),
]


@pytest.mark.parametrize("options, error", PLACES)
def test_a_place_that_is_in_use_or_of_no_use_is_named_and_left_alone(options, error, here, monkeypatch):
    write_files(here, {"mine/thesis.tex": b"precious", "other/prepared.txt": b"", "file": b""})
    write_files(here, {"pair/dict.en.txt": b"a 1", "pair/train.en-fr.en.bin": b"1", "own/text/mine/thesis.tex": b""})
    for folder in ("downloads/ptb/text", "corpus"):
        write_files(here / folder, ptb_files())
    (here / "mount").mkdir()
    (here / "loop").symlink_to("loop")
    (here / "link").symlink_to("work")
    monkeypatch.setattr(steps.os.path, "ismount", lambda path: path.name == "mount")
    before, paths = snapshot(here), {*here.rglob("*")}
    done = prepare("ptb", *options.split(), cwd=here)
    assert done.returncode == 2 and re.search(error, done.stderr.splitlines()[-1])
    assert before.items() <= snapshot(here).items()
    assert {path.name for path in {*here.rglob("*")} - paths} <= {".lock", "data-bin"}


@pytest.mark.parametrize(
    "arguments", sorted({recipe.corpus for recipe in RECIPES.values()} - {RECIPES["presets"].corpus})
)
def test_commands_of_the_recipes(arguments):
    bash, script, *arguments = shlex.split(arguments)
    corpus = script.removeprefix("data-prep/").removesuffix("/prepare.sh")
    assert bash == "bash" and options_of(CORPORA[corpus], *arguments, check=True).check
    assert corpus not in ("gigaword", "wsj") or "--from" in arguments  # which are not to be downloaded


@pytest.mark.parametrize("name", sorted({*CORPORA} - {"wsj"}))
@pytest.mark.parametrize("joined", [False, True])
def test_the_next_command_names_a_recipe_of_such_text(name, joined):
    """One of the corpus's own if any has a system ``doc``."""
    corpus, of_pairs = CORPORA[name], isinstance(CORPORA[name], ParallelCorpus)
    pair = corpus.pairs[:1] if of_pairs and len(corpus.pairs) > 1 else []
    options = options_of(corpus, *pair, "--from", ".", *(["--joined-dictionary"] if joined and of_pairs else []))
    told = corpus.report(options)
    beside = ", with bpe.codes and the references in raw" if of_pairs else ""
    assert told.startswith(f"The binarised corpus is in {options.dest}{beside}. Next:")
    recipe = RECIPES[re.search(r"train (\w+) doc", told)[1]]
    own = [
        one
        for one in RECIPES.values()
        if f"data-prep/{name}/" in one.corpus and "doc" in one.systems
        if ("--joined-dictionary" in one.corpus) == options.joined_dictionary
    ]
    assert recipe in own or not own
    if of_pairs:
        assert (recipe.flags("doc").get("share-embeddings") == "all") == joined
        assert recipe.compared_by == ("rouge" if "title" in corpus.languages else "bleu")
    else:
        assert recipe.flags("doc")["task"] == "stateful_lm"


def test_second_run_waits_for_the_first(here, monkeypatch):
    write_files(here / "x", ptb_files())
    options = ["ptb", "--from", "x", "--dest", "result"]
    succeed(*options, "--work", "one", cwd=here)
    made = snapshot(here / "result")
    (here / "result").rename(here / "kept")
    lock = steps.locked(here / "one")
    lock.__enter__()

    def end_the_first_run(message):
        note(message)
        if message.startswith("waiting"):
            (here / "kept").rename(here / "result")
            lock.__exit__(None, None, None)

    monkeypatch.setattr(steps, "note", end_the_first_run)
    done = succeed(*options, "--work", "one", cwd=here)
    assert "waiting for another run that works in one\n" in done.stderr
    assert "already complete" in done.stderr and "binarising" not in done.stderr
    assert snapshot(here / "result") == made


# Steps and results


def test_interrupted_step_leaves_the_old_one(tmp_path):
    def fill(text, folder):
        (folder / "file").write_text(text)
        if text == "bad":
            raise DataError("no")

    target = tmp_path / "step"
    target.mkdir()
    steps.run_step(target, {"a": 1}, partial(fill, "good"))
    with pytest.raises(DataError):
        steps.run_step(target, {"a": 2}, partial(fill, "bad"))
    assert (target / "file").read_text() == "good" and list(tmp_path.iterdir()) == [target]
    steps.run_step(target, {"a": 2}, partial(fill, "better"))
    assert (target / "file").read_text() == "better"


def test_a_folder_that_is_replaced_is_whole_or_not_there(tmp_path, monkeypatch):
    removed = []
    monkeypatch.setattr(steps.shutil, "rmtree", lambda path, **_: removed.append(Path(path).name))
    write_files(tmp_path / "text", {"old": b"old"})
    with steps.new_folder(tmp_path / "text") as folder:
        (folder / "new").touch()
    assert set(snapshot(tmp_path / "text")) == {"new"} and removed and "text" not in removed


def test_a_result_is_not_taken_for_one_of_other_files(here):
    """They are those that were named, or those in the work folder, where downloads may be gone."""
    write_files(here / "x", {"train.txt": b"a\n", "valid.txt": b"a\n", "test.txt": b"b\n"})
    options = ["ptb", "--work", "work"]
    succeed(*options, "--from", "x", cwd=here)
    for source in (["--from", "x"], []):
        assert "already complete" in succeed(*options, *source, cwd=here).stderr
    assert "--from nowhere is not a directory" in fail(*options, "--from", "nowhere", cwd=here)
    assert "work has no simple-examples.tgz" in fail(*options, "--from", "work", cwd=here)
    for place, source in (("other", ["--from", "other"]), ("work", [])):
        write_files(here / place, {"train.txt": b"a\n", "valid.txt": b"a\n", "test.txt": b"c\n"})
        before = snapshot(here)
        error = f"data-bin/ptb was made from other files than those in {place}: delete it or pass another --dest"
        assert fail(*options, *source, cwd=here).endswith(error) and snapshot(here) == before


@pytest.mark.parametrize("name", ["dict.en.txt", "train.de-en.de.bin", "flickr.de-en.en.idx"])
@pytest.mark.parametrize(
    "content, told", [(None, " lacks {}"), ("", " has an empty {}"), ("2", "/{} is not as it was")]
)
def test_a_result_that_lost_a_file_is_not_complete(name, content, told, tmp_path):
    splits = (*SPLITS, "flickr")
    names = [f"{split}.de-en.{side}.{end}" for split in splits for side in LANGUAGES for end in ("bin", "idx")]
    names += ["dict.de.txt", "dict.en.txt"]
    result = write_files(tmp_path / "result", dict.fromkeys([*names, "text.json"], b"1"))
    (result / "digests.json").write_text(json.dumps(dict.fromkeys(names, hashlib.sha256(b"1").hexdigest())))
    options = options_of(Multi30k(), "de-en", "--dest", result)
    (result / "prepared.txt").write_text("a recipe\n")
    assert steps.is_finished(Multi30k(), "a recipe", options)
    (result / name).unlink() if content is None else (result / name).write_text(content)
    with pytest.raises(DataError, match=f"result{told.format(name)}.*: delete it to prepare it again"):
        steps.is_finished(Multi30k(), "a recipe", options)


def test_damaged_records_are_named(here):
    write_files(here / "x", manythings_files())
    options = ["tatoeba", "en", "--from", "x"]
    succeed(*options, cwd=here)
    text = here / "downloads/tatoeba/en/tokens/train.en"
    text.write_text("".join(text.read_text().splitlines(keepends=True)[:-1]))
    message = fail(*options, "--dest", "other", cwd=here)
    assert re.search(r"train.en has \d+ lines, not the \d+ that were written: delete downloads/tatoeba/en/to", message)
    (here / "data-bin/tatoeba.en/text.json").unlink()
    assert "tatoeba.en lacks text.json: delete it to prepare it again" in fail(*options, cwd=here)
    (here / "data-bin/tatoeba.en/digests.json").write_text("x")
    assert "tatoeba.en/digests.json is damaged: delete it" in fail(*options, cwd=here)
    (here / "data-bin/tatoeba.en/prepared.txt").write_bytes(b"\xff\xfe")
    assert "prepared.txt does not say what" in fail(*options, cwd=here)
    (text.parent / "step.json").write_bytes(b"\xff")
    assert "text is already complete" in succeed(*options, "--dest", "other", cwd=here).stderr
    (text.parent / "splits.json").write_text("")
    with pytest.raises(DataError, match="splits.json is damaged: delete"):
        steps.splits_of(text.parent)


def test_a_full_disk_and_an_interrupt(here, monkeypatch):
    write_files(here / "x", ptb_files())
    monkeypatch.setattr(main, "make_steps", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    remedy = "make room and run again, or pass another --work and --dest"
    assert fail("ptb", "--from", "x", cwd=here) == f"error: a file: No space left on device: {remedy}"
    monkeypatch.setattr(main, "make_steps", Mock(side_effect=KeyboardInterrupt))
    done = prepare("ptb", "--from", "x", cwd=here)
    assert done.returncode == 130 and done.stderr.endswith("interrupted: run the same command again to resume\n")


@pytest.mark.parametrize("dest", [".", "link"])
def test_a_folder_may_be_named_in_any_way(dest, here):
    write_files(here / "x", ptb_files())
    (here / "real").mkdir()
    (here / "link").symlink_to("real")
    cwd = here / "real" if dest == "." else here
    succeed("ptb", "--from", here / "x", "--work", here / "work", "--dest", dest, cwd=cwd)
    assert (here / "real/prepared.txt").is_file() and (here / "link").is_symlink()


# Scripts


@pytest.mark.slow
def test_script(here):
    """Into a folder whose name the output cannot show."""
    write_files(here / "my files", ptb_files())
    variables = {"PYTHONIOENCODING": "ascii", "PYTHONSAFEPATH": "1"}
    done = prepare_in_shell("ptb", "--from", "my files", "--dest", "dü", cwd=here, **variables)
    assert done.returncode == 0 and r"The binarised corpus is in d\xfc" in done.stdout, done.stderr
    text = " ".join(word for line in binarised_text(here / "dü", "train") for word in line)
    assert text == " ".join(PTB["train"].decode().replace("\n", "</s>").split())
    succeed("ptb", "--from", "my files", "--dest", "here too", cwd=here)
    results = [snapshot(here / "dü"), snapshot(here / "here too")]
    assert all(results[0][name] == results[1][name] for name in results[0] if name != "preprocess.log")
    done = prepare_in_shell("ptb", "--from", "nowhere", cwd=here)
    assert done.returncode == 2 and done.stderr.splitlines()[-1].startswith("error: --from nowhere is not a directory")


def test_a_program_or_a_package_is_missing(here, monkeypatch):
    remedy = "activate the environment that fairseq is installed in"
    assert f"fairseq-preprocess is not on PATH: {remedy}" in fail("ptb", cwd=here, PATH=str(here))
    done = subprocess.run(
        [sys.executable, "-S", ROOT / "data-prep/prepare.py", "ptb"], cwd=here, capture_output=True, text=True
    )
    assert done.returncode == 2 and re.fullmatch(rf"error: No module named '\w+': {remedy}\n", done.stderr)
    write_files(here / "x", named("gold.*.trees", dict.fromkeys(SPLITS, b"(S1 (X (NN a)))\n")))
    monkeypatch.setitem(sys.modules, "fairseq_plugins.trees", None)
    message = fail("wsj", "--from", "x", cwd=here)
    assert "fairseq_plugins.trees" in message and message.endswith(remedy)
    for tool in ["bash", "dirname", "readlink"]:
        (here / tool).symlink_to(shutil.which(tool))
    script = ROOT / "data-prep/ptb/prepare.sh"
    done = subprocess.run([here / "bash", script], env={"PATH": str(here)}, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr == f"error: python3 is not on PATH: {remedy}\n"


def assert_nothing_runs_in(folder):
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
def test_kill_and_run_again(tmp_path):
    options = ["de-en", "--from", "../x", "--merges", 60, "--workers", 2]
    command = ["bash", ROOT / "data-prep" / "multi30k" / "prepare.sh", *map(str, options)]
    write_files(tmp_path / "x", multi30k_files(num_lines=2000))
    (tmp_path / "undisturbed").mkdir()
    (tmp_path / "killed").mkdir()
    env = {**os.environ, "EXPECTED_COUNTS": "skip"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    for pattern in ["downloads/*/*/.tokens.*", "data-bin/.*"]:  # worker processes, fairseq-preprocess
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
    assert snapshot(tmp_path / "undisturbed") == snapshot(tmp_path / "killed")
