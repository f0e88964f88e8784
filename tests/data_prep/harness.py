"""What the tests of the parallel corpora share: the scripts as a user drives them, small texts, archives."""

import io
import os
import random
import subprocess
import sys
import tarfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SHARED_DATA = REPOSITORY.parent / "shared" / "data"
sys.path.insert(0, str(REPOSITORY / "data-prep"))

LANGUAGES = ("de", "en")
WORDS = {
    "de": "Hund Häuser läuft grüne Straße, am und's",
    "en": "dog houses runs green street, at don't",
    "fr": "chien maisons l'été vert « rue », aujourd'hui",
}


def sentences(language: str, count: int, seed: int = 1) -> list[str]:
    """Sentences whose n-th has the number n in every language."""
    rng = random.Random(f"{seed}")
    words = WORDS[language].split()
    return [" ".join([str(n), *rng.choices(words, k=rng.randint(3, 6)), "."]) for n in range(count)]


def prepare(corpus: str, *options: object, cwd: Path, check: bool = False, **env: str) -> subprocess.CompletedProcess:
    """Run a prepare script; the real corpus's counts are demanded only with ``check``."""
    return subprocess.run(
        ["bash", str(REPOSITORY / "data-prep" / corpus / "prepare.sh"), *map(str, options)],
        check=False,
        cwd=cwd,
        env={**os.environ, "NO_PROXY": "*", "EXPECTED_COUNTS": "check" if check else "skip", **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


def succeed(corpus: str, *options: object, **kwargs) -> subprocess.CompletedProcess:
    done = prepare(corpus, *options, **kwargs)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def fail(corpus: str, *options: object, cwd: Path, **kwargs) -> str:
    """The error line, the last one, of a failing run, which must leave nothing half-made behind."""
    done = prepare(corpus, *options, cwd=cwd, **kwargs)
    assert done.returncode == 1, done.stdout + done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ") and "Traceback" not in done.stderr
    assert not list(cwd.glob("data-bin/*/*"))
    assert not list(cwd.rglob("*.part")) and not list(cwd.rglob("*.partial-*"))
    return last


def binarised(folder: Path, split: str, pair: str, language: str) -> list[str]:
    """What the host reads back, without end marks."""
    from fairseq.data import Dictionary
    from fairseq.data.indexed_dataset import make_dataset

    dictionary = Dictionary.load(str(folder / f"dict.{language}.txt"))
    dataset = make_dataset(str(folder / f"{split}.{pair}.{language}"), impl="mmap")
    for line in dataset:
        assert line[-1] == dictionary.eos()
    return [" ".join(dictionary[index] for index in line[:-1].tolist()) for line in dataset]


def joined(line: str) -> str:
    return (line + " ").replace("@@ ", "").strip()


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def tgz(members: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return content.getvalue()
