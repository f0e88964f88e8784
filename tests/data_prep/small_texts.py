"""Small texts and archives, of which the small corpora are made."""

import gzip
import io
import random
import tarfile
import zipfile
from pathlib import Path

LANGUAGES = ("de", "en")
SPLITS = ("train", "valid", "test")
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


def text_of(lines: list[str], end: str = "\n") -> bytes:
    """The bytes of a file with these lines."""
    return "".join(f"{line}{end}" for line in lines).encode()


def tgz(members: dict[str, bytes]) -> bytes:
    """A .tgz archive, the same at all times."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return gzip.compress(content.getvalue(), mtime=0)


def zipped(members: dict[str, bytes]) -> bytes:
    """A .zip archive, the same at all times."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return content.getvalue()


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    """Write files below a folder, compressed where their names end in ``.gz`` but not ``.tar.gz``."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" and ".tar" not in name else data)
    return folder
