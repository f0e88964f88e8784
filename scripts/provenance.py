"""When, with which code and on what a figure was measured."""

import platform
import re
import subprocess
from datetime import date
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Dict

import torch


def describe_machine() -> str:
    """Processor, cores, GPU and versions."""
    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        models = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.M)
        cpu = f"{models[0]}, {len(models)} cores" if models else cpu
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    distributions = packages_distributions().get("fairseq")
    host = version(distributions[0]) if distributions else "without metadata"
    return f"{cpu}{gpu}; Python {platform.python_version()}, torch {torch.__version__}, fairseq {host}"


def commit() -> str:
    """The checked-out commit, marked "-dirty" where its code was changed, or 'unknown' outside a checkout.

    The results, which scripts write one after the other, are not its code.
    """
    name = _git("describe", "--always", "--exclude", "*")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)results")
    return f"{name}-dirty" if name and changed else name or "unknown"


def _git(*arguments: str) -> str:
    result = subprocess.run(["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True)
    return result.stdout.strip()


def provenance() -> Dict[str, str]:
    """Date, commit and machine."""
    return {"date": date.today().isoformat(), "commit": commit(), "machine": describe_machine()}


if __name__ == "__main__":
    print("{date}, commit {commit}; {machine}.".format(**provenance()))
