"""The command that trains a language model on a result."""

import shlex
from pathlib import Path


def next_command(dest: Path) -> str:
    """Where the result lies and what to run next."""
    command = ["python", "-m", "fairseq_plugins.cli.train", "reduced", "doc", str(dest)]
    command += ["--save-dir", f"checkpoints/{dest.name}"]
    return f"The binarised corpus is in {dest}. Next:\n  {shlex.join(command)}"
