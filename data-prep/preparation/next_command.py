"""The command that trains a model on a result."""

import shlex
from pathlib import Path


def next_command(dest: Path, *, recipe: str, beside: str = "") -> str:
    """Where the result lies and what to run next.

    Args:
        dest: the result.
        recipe: a recipe with a system ``doc`` that trains on it.
        beside: what else lies there.
    """
    command = ["python", "-m", "fairseq_plugins.cli.train", recipe, "doc", str(dest)]
    command += ["--save-dir", f"checkpoints/{dest.name}"]
    return f"The binarised corpus is in {dest}{beside}. Next:\n  {shlex.join(command)}"
