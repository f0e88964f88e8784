"""Provenance of figures: date, code, machine and command line."""

import platform
import re
import subprocess
from datetime import date
from functools import cache
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Dict

import torch

import fairseq_plugins
from fairseq_plugins.ops.matmul import has_native_bfloat16

HERE = Path(__file__).resolve()


def describe_machine() -> str:
    """Processor with its vector extension, cores, GPU, and versions."""
    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        models = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.M)
        extension = torch.backends.cpu.get_cpu_capability()
        bfloat16 = " with bfloat16" if has_native_bfloat16(torch.device("cpu")) else ""
        cpu = f"{models[0]} ({extension}{bfloat16}), {len(models)} cores" if models else cpu
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{cpu}{gpu}; Python {platform.python_version()}, torch {torch.__version__}, fairseq {_fairseq_version()}"


@cache
def _fairseq_version() -> str:
    """Version of the distribution that provides fairseq."""
    distributions = packages_distributions().get("fairseq")
    return version(distributions[0]) if distributions else "without metadata"


def describe_code() -> str:
    """The commit of the running checkout, or the version of the installed package.

    "-dirty" marks uncommitted changes, except in results. A package installed inside a checkout counts as installed.
    """
    if not _git("ls-files", HERE.name):
        return f"fairseq-plugins {fairseq_plugins.__version__}"
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)results")
    return f"commit {_git('describe', '--always', '--exclude', '*')}{'-dirty' if changed else ''}"


def _git(*arguments: str) -> str:
    """Output of git. Empty outside a checkout or without git."""
    try:
        result = subprocess.run(["git", *arguments], cwd=HERE.parent, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return result.stdout.strip()


def origin(command: str) -> Dict[str, str]:
    """Date, code, machine and the user's command line, which come before figures."""
    return {
        "date": date.today().isoformat(),
        "code": describe_code(),
        "machine": describe_machine(),
        "command": command,
    }
