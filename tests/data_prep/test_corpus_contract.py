"""What holds for every corpus: results, what is refused, what is told, what a stopped run leaves."""

import hashlib
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from preparation import steps
from preparation.corpora import CORPORA
from preparation_runs import REPOSITORY, fail, prepare, snapshot, succeed
from small_corpora import SMALL_CORPORA, SmallCorpus, write_corpus

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


def test_result_of_the_host_is_left_alone(prepared: SimpleNamespace, here: Path) -> None:
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
    prepared: SimpleNamespace, here: Path, fake_host: dict[str, str]
) -> None:
    """The host fails; the steps before it are not repeated; an incomplete result is made again."""
    small = prepared.small
    write_corpus(here / "x", small)
    options = [small.corpus, *small.options, "--from", "x"]
    message = fail(*options, cwd=here, **fake_host)
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
    told = []

    def finish_the_first_run(message: str) -> None:
        told.append(message)
        if message.startswith("waiting"):
            shutil.copytree(prepared.dest, here / "data-bin" / small.result)
            first.__exit__(None, None, None)

    monkeypatch.setattr(steps, "note", finish_the_first_run)
    done = succeed(small.corpus, *small.options, "--from", "x", "--work", "work", cwd=here)
    assert told == ["waiting for another run that works in work"] and "already complete" in done.stderr
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


def test_host_is_missing(here: Path) -> None:
    message = fail("ptb", cwd=here, PATH=str(here))
    assert "fairseq-preprocess is not on PATH: activate the environment" in message
