"""What counts of the files that a command leaves in a folder."""

import hashlib
from pathlib import Path
from typing import Callable, Dict

import torch


def contents(folder: Path) -> Dict[str, str]:
    """A digest of every file in a folder by its path."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def nothing(folder: Path) -> None:
    """Of commands that only print."""


def files(*names: str) -> Callable[[Path], object]:
    """The digests of these."""

    def result(folder: Path) -> object:
        return {name: digest for name, digest in contents(folder).items() if name in names}

    return result


def _is_left_out(name: str) -> bool:
    """What is written aside begins with a point; a killed process leaves it."""
    return name.endswith((".lock", ".log")) or name.rpartition("/")[2].startswith(".")


def below(parent: str) -> Callable[[Path], Dict[str, str]]:
    """The digests of all in a folder."""

    def result(folder: Path) -> Dict[str, str]:
        there = contents(folder / parent)
        return {name: digest for name, digest in there.items() if not _is_left_out(name)}

    return result


def decoded(folder: Path) -> object:
    """Sentences of what fairseq wrote, which tells its speed, too."""
    lines = (folder / "out/generate.txt").read_text().splitlines()
    there = {name: digest for name, digest in below("out")(folder).items() if name != "generate.txt"}
    return there, [line for line in lines if line.startswith(("T-", "H-", "D-"))]


def weights(folder: Path) -> object:
    """Weights of all checkpoints, and names of all files."""
    names = sorted(path.name for path in (folder / "trained").iterdir())
    states = {name: torch.load(folder / "trained" / name)["model"] for name in names if name.endswith(".pt")}
    return names, {name: {key: value.tolist() for key, value in state.items()} for name, state in states.items()}
