"""The command that trains a language model on a result."""

import shlex
from pathlib import Path

PLUGINS = Path(__file__).resolve().parents[2] / "fairseq_plugins"


def next_command(dest: Path) -> str:
    """Where the result lies and what to run next."""
    plugins = PLUGINS.name if PLUGINS == Path.cwd() / PLUGINS.name else str(PLUGINS)
    command = ["fairseq-train", str(dest), "--user-dir", plugins, "--task", "stateful_lm", "--arch", "lstm_lm_awd"]
    command += ["--tokens-per-sample", "70", "--batch-size", "20", "--criterion", "regularized_cross_entropy"]
    command += ["--optimizer", "nt_asgd", "--lr", "20", "--clip-norm", "0.25"]
    command += ["--save-dir", f"checkpoints/{dest.name}"]
    return f"The binarised corpus is in {dest}. Next:\n  {shlex.join(command)}"
