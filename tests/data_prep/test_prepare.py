"""The corpus preparation scripts, driven as a user drives them, on small archives in the originals' layout."""

import io
import os
import random
import re
import shutil
import tarfile
import zipfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from harness import SHARED_DATA, prepare, succeed

CORPORA = ["ptb", "wikitext-2", "wikitext-103", "text8"]
SPLITS = ["train", "valid", "test"]
OUTPUTS = {"dict.txt", "prepared.txt", "preprocess.log"} | {f"{s}.{end}" for s in SPLITS for end in ["bin", "idx"]}
WIKITEXT = {
    "train": " \n = Tïtle = \n \n a b <unk> 、 b \n \n = = End = = \n\n",
    "valid": " \n = Other = \n \n a b c b unseen \n",
    "test": " \n a , b \n \n \n b . \n",
}
PTB = {"train": " a b <unk> b \n c a N \n", "valid": " b c \n", "test": " a c unseen \n c \n"}

pytestmark = pytest.mark.skipif(
    not all(shutil.which(tool) for tool in ["bash", "curl", "unzip", "fairseq-preprocess"]),
    reason="needs bash, curl, unzip and fairseq-preprocess on PATH",
)


def fail(corpus: str, *options: object, cwd: Path, **kwargs) -> str:
    """The only error line of a failing run, which must leave nothing half-made behind."""
    done = prepare(corpus, *options, cwd=cwd, **kwargs)
    assert done.returncode == 1, done.stdout + done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and done.stderr.splitlines()[-1] == errors[0]
    assert not (cwd / "data-bin" / corpus).exists()
    assert not list(cwd.rglob("*.part")) and not list(cwd.rglob("*.partial"))
    return errors[0]


def write_texts(folder: Path, pattern: str, texts: dict[str, str]) -> Path:
    folder.mkdir(parents=True)
    for split, text in texts.items():
        (folder / pattern.replace("*", split)).write_text(text, encoding="utf-8", newline="")
    return folder


def write_tgz(path: Path, texts: dict[str, str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for split, text in texts.items():
            member = tarfile.TarInfo(f"./simple-examples/data/ptb.{split}.txt")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


def write_zip(path: Path, corpus: str, texts: dict[str, str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for split, text in texts.items():
            archive.writestr(f"{corpus}/wiki.{split}.tokens", text)
    return path


def num_tokens(text: str) -> int:
    return len(text.split()) + text.count("\n")


def num_dictionary_rows(train: str) -> int:
    return len(set(train.split()) - {"<unk>"})


def binarised_lines(folder: Path, split: str) -> list[list[str]]:
    """What the host reads back, end marks included."""
    from fairseq.data import Dictionary
    from fairseq.data.indexed_dataset import make_dataset

    dictionary = Dictionary.load(str(folder / "dict.txt"))
    dataset = make_dataset(str(folder / split), impl="mmap")
    return [[dictionary[index] for index in line.tolist()] for line in dataset]


def expected_lines(text: str, train: str) -> list[list[str]]:
    known = set(train.split())
    lines = text.split("\n")
    assert lines.pop() == ""
    return [[word if word in known else "<unk>" for word in line.split()] + ["</s>"] for line in lines]


def assert_binarised(folder: Path, texts: dict[str, str]) -> None:
    assert {path.name for path in folder.iterdir()} == OUTPUTS
    assert len((folder / "dict.txt").read_text().splitlines()) == num_dictionary_rows(texts["train"])
    for split, text in texts.items():
        assert binarised_lines(folder, split) == expected_lines(text, texts["train"])


def snapshot(folder: Path) -> dict[str, tuple]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}


@pytest.fixture(scope="module")
def real_ptb() -> dict[str, str]:
    folder = SHARED_DATA / "ptb"
    if not folder.is_dir():
        pytest.skip("the Penn Treebank text is not in ../shared/data/ptb")
    return {split: (folder / f"{split}.txt").read_text(encoding="utf-8") for split in SPLITS}


@pytest.fixture(scope="module")
def real_wikitext() -> dict[str, str]:
    folder = SHARED_DATA / "wikitext-2"
    if not folder.is_dir():
        pytest.skip("WikiText-2's valid and test are not in ../shared/data/wikitext-2")
    return {split: (folder / f"{split}.txt").read_text(encoding="utf-8") for split in ["valid", "test"]}


@pytest.fixture(scope="module")
def wikitext_2(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """WikiText-2's script on a small archive."""
    cwd = tmp_path_factory.mktemp("wikitext 2")
    write_zip(cwd / "from here" / "wikitext-2-v1.zip", "wikitext-2", WIKITEXT)
    done = succeed("wikitext-2", "--from", "from here", cwd=cwd)
    return SimpleNamespace(cwd=cwd, dest=cwd / "data-bin" / "wikitext-2", stdout=done.stdout, stderr=done.stderr)


@pytest.mark.parametrize("corpus", CORPORA)
def test_help(corpus: str, here: Path) -> None:
    done = prepare(corpus, "--help", cwd=here)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith("usage: ")
    assert all(f"  {flag} " in done.stdout for flag in ["--from", "--mirror", "--dest", "--work"])
    assert "EXPECTED_COUNTS=skip" in done.stdout
    assert not list(here.iterdir())


@pytest.mark.parametrize("corpus", CORPORA)
@pytest.mark.parametrize(
    "options",
    [["--frmo", "x"], ["text8"], ["--from"], ["--mirror", "--dest", "x"], ["--dest", ""], ["--workers", "0"]],
    ids=" ".join,
)
def test_usage_error(corpus: str, options: list[str], here: Path) -> None:
    done = prepare(corpus, *options, cwd=here)
    assert done.returncode == 2 and done.stdout == ""
    assert "\nusage: " in done.stderr and options[0] in done.stderr.splitlines()[0]
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    "options", [["--level", "byte"], ["--threshold", "many"], ["--level", "char", "--threshold", "3"]], ids=" ".join
)
def test_usage_error_of_text8(options: list[str], here: Path) -> None:
    assert prepare("text8", *options, cwd=here).returncode == 2


def test_level_is_unknown_elsewhere(here: Path) -> None:
    assert prepare("ptb", "--level", "word", cwd=here).returncode == 2


def test_wrong_value_of_expected_counts(here: Path) -> None:
    assert prepare("ptb", cwd=here, EXPECTED_COUNTS="no").returncode == 2


def test_real_ptb_from_archive(real_ptb: dict[str, str], here: Path) -> None:
    write_tgz(here / "my files" / "simple-examples.tgz", real_ptb)
    done = succeed("ptb", "--from", "my files", "--dest", "data dir/ptb", "--work", "work dir", cwd=here, check=True)
    dest = here / "data dir" / "ptb"
    assert_binarised(dest, real_ptb)
    assert len((dest / "dict.txt").read_text().splitlines()) == 9998
    for split, num_lines, tokens in [("train", 42068, 929589), ("valid", 3370, 73760), ("test", 3761, 82430)]:
        assert (real_ptb[split].count("\n"), num_tokens(real_ptb[split])) == (num_lines, tokens)
        assert re.search(rf"^{split} +{num_lines} lines +{tokens} tokens", done.stdout, re.MULTILINE)
    assert "data dir/ptb" in done.stdout
    assert re.search(r"fairseq-train data\\ dir/ptb --user-dir .+ --task stateful_lm --arch lstm_lm_awd", done.stdout)
    assert "not checked" not in done.stderr
    assert {path.name for path in here.iterdir()} == {"my files", "data dir", "work dir"}


def test_real_ptb_truncated(real_ptb: dict[str, str], here: Path) -> None:
    broken = {**real_ptb, "valid": real_ptb["valid"][:200000]}
    folder = write_texts(here / "texts", "ptb.*.txt", broken)
    message = fail("ptb", "--from", folder, cwd=here, check=True)
    assert "ptb.valid.txt" in message and "--from DIR" in message and "delete" in message
    assert "expected c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2" in message


def test_ptb_from_plain_text(here: Path) -> None:
    folder = write_texts(here / "plain, text", "*.txt", PTB)
    before = snapshot(folder)
    succeed("ptb", "--from", "plain, text", cwd=here)
    assert_binarised(here / "data-bin" / "ptb", PTB)
    assert snapshot(folder) == before


def test_wrong_checksum(here: Path) -> None:
    archive = write_tgz(here / "x" / "simple-examples.tgz", PTB)
    message = fail("ptb", "--from", "x", cwd=here, check=True)
    assert re.search("has SHA-256 [0-9a-f]{64}, expected fcea919f", message)
    assert f"delete x/{archive.name}" in message and "--from DIR" in message


def test_from_folder_without_the_corpus(here: Path) -> None:
    write_texts(here / "x", "ptb.*.txt", {split: PTB[split] for split in ["train", "valid"]})
    message = fail("ptb", "--from", "x", cwd=here)
    assert "simple-examples.tgz" in message and "ptb.test.txt" in message


def test_from_is_no_folder(here: Path) -> None:
    assert "nowhere" in fail("ptb", "--from", "nowhere", cwd=here)


def test_second_mirror(here: Path, server: SimpleNamespace) -> None:
    write_zip(server.folder / "good" / "wikitext-2-v1.zip", "wikitext-2", WIKITEXT)
    (server.folder / "parked").mkdir()
    (server.folder / "parked" / "wikitext-2-v1.zip").write_text("<html>This domain is for sale</html>")
    (here / "downloads" / "wikitext-2").mkdir(parents=True)
    (here / "downloads" / "wikitext-2" / "wikitext-2-v1.zip.part").write_text("left by an interrupted run")
    (here / "data-bin" / "wikitext-2.partial").mkdir(parents=True)
    (here / "data-bin" / "wikitext-2.partial" / "dict.txt").write_text("left 1\n")
    mirrors = [f"{server.url}/gone/", f"{server.url}/parked", f"{server.url}/good/wikitext-2-v1.zip"]
    succeed("wikitext-2", *[part for mirror in mirrors for part in ["--mirror", mirror]], cwd=here)
    assert server.requests == [f"/{folder}/wikitext-2-v1.zip" for folder in ["gone", "parked", "good"]]
    assert_binarised(here / "data-bin" / "wikitext-2", WIKITEXT)
    assert [path.name for path in (here / "data-bin").iterdir()] == ["wikitext-2"]
    assert not list(here.rglob("*.part"))


def test_plain_text_mirror_of_ptb(here: Path, server: SimpleNamespace) -> None:
    write_texts(server.folder / "plain", "ptb.*.txt", PTB)
    succeed("ptb", "--mirror", f"{server.url}/gone", "--mirror", f"{server.url}/plain", cwd=here)
    assert_binarised(here / "data-bin" / "ptb", PTB)
    num_requests = len(server.requests)
    shutil.rmtree(here / "data-bin")
    for options in [["--mirror", f"{server.url}/gone"], ["--from", "downloads/ptb", "--work", "other"]]:
        message = fail("ptb", *options, cwd=here, check=True)
        assert "SHA-256" in message and "downloads/ptb/ptb.train.txt" in message
    assert len(server.requests) == num_requests


@pytest.mark.parametrize(
    "corpus, archive",
    [
        ("ptb", "simple-examples.tgz"),
        ("wikitext-2", "wikitext-2-v1.zip"),
        ("wikitext-103", "wikitext-103-v1.zip"),
        ("text8", "text8.zip"),
    ],
)
def test_no_mirror_left(corpus: str, archive: str, here: Path, server: SimpleNamespace) -> None:
    message = fail(corpus, "--mirror", f"{server.url}/a", "--mirror", f"{server.url}/b", cwd=here)
    assert archive in message and "by hand" in message and "--from DIR" in message
    assert server.requests[:2] == [f"/a/{archive}", f"/b/{archive}"]
    assert not (here / "downloads" / corpus / archive).exists()


@pytest.mark.parametrize("corpus", ["ptb", "wikitext-2"])
@pytest.mark.parametrize("damage", ["truncated", "noise"])
def test_corrupt_archive(corpus: str, damage: str, here: Path) -> None:
    random_text = " ".join(map(str, random.Random(1).choices(range(1000), k=20000))) + "\n"
    texts = {split: random_text for split in SPLITS}
    if corpus == "ptb":
        archive = write_tgz(here / "x" / "simple-examples.tgz", texts)
    else:
        archive = write_zip(here / "x" / "wikitext-2-v1.zip", "wikitext-2", texts)
    content = archive.read_bytes()
    middle = len(content) // 2
    archive.write_bytes(content[:middle] if damage == "truncated" else content[:middle] + b"!" + content[middle + 1 :])
    message = fail(corpus, "--from", "x", cwd=here)
    assert "damaged" in message and archive.name in message and "--from DIR" in message


@pytest.mark.parametrize("corpus", ["ptb", "wikitext-2", "text8"])
def test_missing_member(corpus: str, here: Path) -> None:
    if corpus == "ptb":
        write_tgz(here / "x" / "simple-examples.tgz", {split: PTB[split] for split in ["train", "valid"]})
        member = "simple-examples/data/ptb.test.txt"
    elif corpus == "text8":
        write_zip(here / "x" / "text8.zip", "wikitext-2", WIKITEXT)
        member = "text8"
    else:
        write_zip(here / "x" / "wikitext-2-v1.zip", "wikitext-2", {"train": WIKITEXT["train"]})
        member = "wikitext-2/wiki.valid.tokens"
    assert f"has no member {member}:" in fail(corpus, "--from", "x", cwd=here)


def test_wrong_counts_of_wikitext_2(real_wikitext: dict[str, str], here: Path) -> None:
    write_zip(here / "x" / "wikitext-2-v1.zip", "wikitext-2", {"train": WIKITEXT["train"], **real_wikitext})
    message = fail("wikitext-2", "--from", "x", cwd=here, check=True)
    num_lines = WIKITEXT["train"].count("\n")
    assert f"has {num_tokens(WIKITEXT['train'])} tokens in {num_lines} lines, expected 2088628" in message


def test_wikitext_2_checksums(real_wikitext: dict[str, str], here: Path) -> None:
    folder = write_texts(here / "x", "wiki.*.tokens", {"train": WIKITEXT["train"], **real_wikitext})
    path = folder / "wiki.test.tokens"
    path.write_text(path.read_text(encoding="utf-8").replace("Robert", "Rupert", 1), encoding="utf-8")
    message = fail("wikitext-2", "--from", "x", cwd=here, check=True)
    assert "SHA-256" in message and "wiki.test.tokens" in message


@pytest.mark.parametrize("corpus, option", [("wikitext-103", "wiki.*.tokens"), ("text8", "text8")])
def test_wrong_counts(corpus: str, option: str, here: Path) -> None:
    if corpus == "text8":
        write_texts(here / "x", "text8", {"": "a few words only"})
        expected = "has 4 words in 16 characters, expected 17005207 in 100000000"
    else:
        write_texts(here / "x", option, WIKITEXT)
        expected = f"has {num_tokens(WIKITEXT['train'])} tokens in 7 lines, expected 103227021"
    message = fail(corpus, "--from", "x", cwd=here, check=True)
    assert expected in message and "delete" in message


def test_wikitext_2_keeps_blank_lines(wikitext_2: SimpleNamespace) -> None:
    assert_binarised(wikitext_2.dest, WIKITEXT)
    lines = binarised_lines(wikitext_2.dest, "train")
    assert lines.count(["</s>"]) == 4 and len(lines) == 7
    for split, text in WIKITEXT.items():
        counts = rf"^{split} +{text.count(chr(10))} lines +{num_tokens(text)} tokens"
        assert re.search(counts, wikitext_2.stdout, re.MULTILINE)
    assert "warning: EXPECTED_COUNTS=skip" in wikitext_2.stderr


def test_run_again_leaves_the_result_alone(wikitext_2: SimpleNamespace) -> None:
    before = snapshot(wikitext_2.dest)
    done = succeed("wikitext-2", "--from", "from here", cwd=wikitext_2.cwd)
    assert "already complete" in done.stderr and snapshot(wikitext_2.dest) == before


def test_unchecked_result_does_not_pass_for_a_checked_one(wikitext_2: SimpleNamespace) -> None:
    before = snapshot(wikitext_2.dest)
    done = prepare("wikitext-2", "--from", "from here", cwd=wikitext_2.cwd, check=True)
    assert done.returncode == 1 and "not checked" in done.stderr and "--dest" in done.stderr
    assert snapshot(wikitext_2.dest) == before


def test_result_of_another_corpus_is_not_taken(wikitext_2: SimpleNamespace, here: Path) -> None:
    done = prepare("ptb", "--dest", wikitext_2.dest, cwd=here)
    assert done.returncode == 1 and "already holds 'wikitext-2, not checked'" in done.stderr


def test_foreign_folder_is_not_touched(here: Path) -> None:
    (here / "data-bin" / "ptb").mkdir(parents=True)
    (here / "data-bin" / "ptb" / "thesis.tex").write_text("precious")
    done = prepare("ptb", cwd=here)
    assert done.returncode == 1 and "--dest" in done.stderr
    assert (here / "data-bin" / "ptb" / "thesis.tex").read_text() == "precious"


def test_result_of_the_host_is_left_alone(wikitext_2: SimpleNamespace, here: Path) -> None:
    dest = here / "data-bin" / "ptb"
    shutil.copytree(wikitext_2.dest, dest)
    (dest / "prepared.txt").unlink()
    before = snapshot(dest)
    assert "left alone" in succeed("ptb", cwd=here).stderr and snapshot(dest) == before


def test_incomplete_result_is_made_again(here: Path) -> None:
    folder = write_texts(here / "x", "wiki.*.tokens", WIKITEXT)
    dest = here / "data-bin" / "wikitext-103"
    dest.mkdir(parents=True)
    (dest / "dict.txt").write_text("left 1\n")
    succeed("wikitext-103", "--from", folder, "--dest", f"{dest}/", cwd=here)
    assert_binarised(dest, WIKITEXT)


def test_failing_preprocess_leaves_nothing(here: Path) -> None:
    write_texts(here / "x", "*.txt", PTB)
    (here / "bin").mkdir()
    (here / "bin" / "fairseq-preprocess").write_text("#!/bin/sh\necho out of memory\nexit 3\n")
    (here / "bin" / "fairseq-preprocess").chmod(0o755)
    message = fail("ptb", "--from", "x", cwd=here, PATH=f"{here / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert "out of memory" in message and "downloads/ptb/preprocess.log" in message


def text8(num_words: int) -> str:
    generator = random.Random(2)
    words = ["".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=generator.randint(1, 9))) for _ in range(400)]
    return " " + " ".join(generator.choices(words, weights=[1 / (i + 1) for i in range(400)], k=num_words))


def write_text8(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("text8", text)


def test_text8_words(here: Path) -> None:
    text = text8(30000)
    while text[len(text) * 9 // 10 - 1] == " " or text[len(text) * 9 // 10] == " ":
        text += "x"
    write_text8(here / "x" / "text8.zip", text)
    succeed("text8", "--from", "x", "--threshold", "7", cwd=here)

    ends = [match.end() for match in re.finditer(r"\S+", text)]
    parts = [
        sum(end - len(word) < border for end, word in zip(ends, text.split()))
        for border in [len(text) * 9 // 10, len(text) * 19 // 20]
    ]
    words = text.split()
    expected = {"train": words[: parts[0]], "valid": words[parts[0] : parts[1]], "test": words[parts[1] :]}
    known = {word for word, count in Counter(expected["train"]).items() if count >= 7}
    assert known < set(expected["train"])
    dest = here / "data-bin" / "text8"
    assert len((dest / "dict.txt").read_text().splitlines()) == len(known)
    for split in SPLITS:
        lines = binarised_lines(dest, split)
        assert [len(line) for line in lines[:-1]] == [1001] * (len(lines) - 1)
        assert all(line[-1] == "</s>" for line in lines)
        stream = [word for line in lines for word in line[:-1]]
        assert stream == [word if word in known else "<unk>" for word in expected[split]]


def test_text8_characters(here: Path) -> None:
    text = text8(4000)
    write_texts(here / "x", "text8", {"": text})
    succeed("text8", "--from", "x", "--level", "char", cwd=here)
    dest = here / "data-bin" / "text8-char"
    assert len((dest / "dict.txt").read_text().splitlines()) == 27
    borders = [0, len(text) * 9 // 10, len(text) * 19 // 20, len(text)]
    for split, start, end in zip(SPLITS, borders, borders[1:]):
        lines = binarised_lines(dest, split)
        assert len(lines) == -(-(end - start) // 1000)
        assert "".join("".join(line[:-1]) for line in lines).replace("_", " ") == text[start:end]
        assert all(line[-1] == "</s>" for line in lines)
