"""Archives: .tgz and .zip, of which only some members are wanted."""

import gzip
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from .errors import CHECK_OR_PASS, DataError, note
from .sources import BLOCK, damage_reported


def is_sound(path: Path) -> bool:
    """Whether a .zip file has a right checksum for each member, or any other file decompresses to its end."""
    try:
        with damage_reported(path):
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    return archive.testzip() is None
            with gzip.open(path) as file:
                while file.read(BLOCK):
                    pass
    except DataError:
        return False
    return True


def unpack(
    archive: Path, wanted: set[str], folder: Path, *, name: object = None, all_needed: bool = True
) -> dict[str, Path]:
    """Put the members of an archive that are ``wanted`` into ``folder``; where each now is.

    A member is wanted by its path, or by the end of its path. ``name`` stands for the archive in an error message.
    All of them must be there, unless not ``all_needed``.
    """
    where = name or archive
    note(f"unpacking {where}")
    found: dict[str, Path] = {}
    members = _zip_members if archive.suffix == ".zip" else _tar_members
    with damage_reported(where):
        for path, file in members(archive):
            member = next((each for each in wanted - found.keys() if f"/{path}".endswith(f"/{each}")), None)
            if member:
                found[member] = folder / member.rpartition("/")[2]
                with open(found[member], "wb") as target:
                    shutil.copyfileobj(file, target, BLOCK)
    if all_needed and wanted != found.keys():
        raise DataError(f"{where} has no member {', '.join(sorted(wanted - found.keys()))}: {CHECK_OR_PASS}")
    return found


def _tar_members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with gzip.open(archive) as unpacked:
        with tarfile.open(fileobj=unpacked, mode="r|") as members:
            for member in members:
                if member.isfile():
                    yield member.name, members.extractfile(member)
        while unpacked.read(BLOCK):  # a truncated archive shows here at the latest
            pass


def _zip_members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(archive) as members:
        for member in members.infolist():
            if not member.is_dir():
                with members.open(member) as file:
                    yield member.filename, file
