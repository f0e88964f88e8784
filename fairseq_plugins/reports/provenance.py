"""When, with which code and on what a figure was measured."""

import platform
import re
import subprocess
from datetime import date
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any, Dict, Mapping

import torch

from fairseq_plugins.ops.native_bfloat16 import has_native_bfloat16

HERE = Path(__file__).resolve()


def describe_machine() -> str:
    """Processor, what it multiplies by, cores, GPU and versions."""
    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        models = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.M)
        extension = torch.backends.cpu.get_cpu_capability()
        bfloat16 = " with bfloat16" if has_native_bfloat16(torch.device("cpu")) else ""
        cpu = f"{models[0]} ({extension}{bfloat16}), {len(models)} cores" if models else cpu
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{cpu}{gpu}; Python {platform.python_version()}, torch {torch.__version__}, fairseq {_host_version()}"


@cache
def _host_version() -> str:
    """Of whatever distribution has fairseq."""
    distributions = packages_distributions().get("fairseq")
    return version(distributions[0]) if distributions else "without metadata"


def describe_code() -> str:
    """The commit of the checkout that runs, or the installed version of this package.

    A commit is marked "-dirty" where its code was changed. Results, which are written one after the other, are not its
    code. An installed package is no checkout, even where its folder lies within one.
    """
    if not _git("ls-files", HERE.name):
        return f"fairseq-plugins {_installed_version()}"
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)results")
    return f"commit {_git('describe', '--always', '--exclude', '*')}{'-dirty' if changed else ''}"


def _installed_version() -> str:
    try:
        return version("fairseq-plugins")
    except PackageNotFoundError:
        return "of unknown version"


def _git(*arguments: str) -> str:
    """What git prints; nothing outside a checkout or without git."""
    try:
        result = subprocess.run(["git", *arguments], cwd=HERE.parent, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return result.stdout.strip()


def provenance() -> Dict[str, str]:
    """Date, code and machine."""
    return {"date": date.today().isoformat(), "code": describe_code(), "machine": describe_machine()}


def with_origin(figures: Mapping[str, Any], *, command: str) -> Dict[str, Any]:
    """Figures after their date, code, machine and the command that was typed."""
    return {**provenance(), "command": command, **figures}


def describe_provenance() -> str:
    """Date, code and machine as one line."""
    return "{date}, {code}; {machine}.".format(**provenance())
