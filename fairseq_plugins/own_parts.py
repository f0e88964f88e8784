"""Parts from elsewhere: a folder of the user's own, ``--user-dir``, and installed packages, by entry points."""

import os
import shlex
import sys
import traceback
from argparse import Namespace
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Iterator, List

from fairseq import utils
from fairseq.models import MODEL_REGISTRY

import fairseq_plugins
from fairseq_plugins.files import given_path
from fairseq_plugins.options import UserError, get_flag
from fairseq_plugins.parts import ModelFlags, check_declarations

PACKAGE = Path(fairseq_plugins.__file__).resolve().parent

GROUP = "fairseq_plugins.parts"
"""Group of the entry points whose modules are imported with this package."""

_imported: List[Path] = []
"""The user's folders that this process has imported. The last one is the value of ``--user-dir``."""


def user_dir() -> str:
    """Value of ``--user-dir`` for the programs of fairseq: the folder that was imported, or else this package."""
    return str(_imported[-1] if _imported else PACKAGE)


def import_folder(text: str) -> None:
    """Import a folder with ``__init__.py`` as fairseq does.

    It must import this package, because fairseq's programs import that folder alone.

    Raises:
        UserError: if it cannot be imported, with file and line, or if two parts declare the same flag.
    """
    folder = Path(os.path.abspath(given_path(text)))
    if folder.resolve() == PACKAGE:
        return
    if not folder.is_dir():
        raise UserError(f"--user-dir {folder} is no folder: give one with your parts and an __init__.py")
    if not (folder / "__init__.py").is_file():
        raise UserError(f"--user-dir {folder} has no __init__.py: write one that imports your parts")
    if "." in folder.name:
        raise UserError(f"--user-dir {folder}: Python imports no folder with a dot in its name: rename it")
    loaded = sys.modules.get(folder.name)
    if loaded is not None and str(folder) not in getattr(loaded, "__path__", ()):
        raise UserError(f"--user-dir {folder}: there is another Python module {folder.name}: rename the folder")
    if not any(b"fairseq_plugins" in path.read_bytes() for path in folder.rglob("*.py") if path.is_file()):
        raise UserError(f"--user-dir {folder}: add import fairseq_plugins to its __init__.py, for fairseq's programs")
    try:
        utils.import_user_module(Namespace(user_dir=str(folder)))
    except Exception as error:
        raise UserError(f"--user-dir {folder}: {_reason(error)}") from error
    _check_all_flags()
    _imported.append(folder)


def import_installed() -> None:
    """Import the modules of all entry points of :data:`GROUP`.

    Raises:
        UserError: naming the package of the first that cannot be imported.
    """
    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as error:
            package = "an unknown package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
            raise UserError(
                f"{package}, which has the entry point {entry.name} = {entry.value} of {GROUP}, cannot be imported: "
                f"{_reason(error)}; repair or uninstall it"
            ) from error
        _check_all_flags()


def _check_all_flags() -> None:
    """Check the flags of all models and their parts by :func:`check_declarations`, before a model is loaded by them."""
    for model in set(MODEL_REGISTRY.values()):
        if isinstance(flags := getattr(model, "flags", None), ModelFlags):
            check_declarations(flags)


def _reason(error: Exception) -> str:
    """The message of an error in code of others, with the last of its lines that led to the error."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: {error.msg}"
    message = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if frame.f_globals.get("__name__", "").split(".")[0] not in ("fairseq", "fairseq_plugins", "importlib"):
            return f"{frame.f_code.co_filename}, line {line}: {message}"
    return message


@contextmanager
def naming_parts(config: Any, *, name: str = "") -> Iterator[None]:
    """Add the folder of a checkpoint's parts to a ``UserError`` in the block, unless it has been imported.

    The folder itself is not imported, because a checkpoint may come from a stranger.

    Args:
        config: of the run that wrote the checkpoint, with ``common.user_dir``, or fairseq's older ``args``.
        name: of the checkpoint and a blank, if the caller does not add it.
    """
    try:
        yield
    except UserError as error:
        folder = get_flag(get_flag(config, "common") or config, "user_dir")
        if not isinstance(folder, str) or not folder.isprintable() or _is_imported(Path(folder)):
            raise
        raise UserError(f"{name}needs parts from {folder}: give --user-dir {shlex.quote(folder)} ({error})") from error


def _is_imported(folder: Path) -> bool:
    """Whether a folder has been imported.

    For a relative path, and for this package, which may have moved, the name alone is compared.
    """
    module = sys.modules.get(folder.name)
    is_any = folder.name == PACKAGE.name or not folder.is_absolute()
    return module is not None and (is_any or str(folder) in getattr(module, "__path__", ()))
