"""The plugin works from an installed package and from a bare checkout, whatever else is installed."""

import os
import shutil
import subprocess
import sys

from commands import ENVIRONMENT, ROOT, command


def train_help(user_dir, arch, *, cwd, **environment):
    result = subprocess.run(
        command("fairseq_cli.train", "--user-dir", user_dir, "--arch", arch, "--task", "stateful_lm", "--help"),
        cwd=cwd,
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout


def copy_package(destination):
    shutil.copytree(ROOT / "fairseq_plugins", destination, ignore=shutil.ignore_patterns("__pycache__"))
    return destination


def test_bare_checkout_wins_over_an_installed_package(tmp_path):
    package = copy_package(tmp_path / "a checkout/fairseq_plugins")
    with open(package / "models/recurrent_lm_presets.py", "a") as presets:
        presets.write('\nARCHITECTURES["lstm_lm_of_the_checkout"] = ARCHITECTURES["lstm_lm_doc"]\n')
    text = train_help("fairseq_plugins", "lstm_lm_of_the_checkout", cwd=package.parent)
    assert "--experts-per-layer" in text


def test_plain_install(tmp_path):
    source = tmp_path / "source"
    copy_package(source / "fairseq_plugins")
    for name in ("setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    site = tmp_path / "site"
    flags = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", site, source]
    subprocess.run([sys.executable, "-m", "pip", "install", *flags], check=True, capture_output=True)
    where = [sys.executable, "-c", "import fairseq_plugins; print(fairseq_plugins.__path__[0])"]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    installed = subprocess.run(where, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert installed.stdout.strip() == str(site / "fairseq_plugins")
    text = train_help(site / "fairseq_plugins", "lstm_lm_mos", cwd=tmp_path, PYTHONPATH=str(site))
    assert "--experts-per-layer" in text and "--window-lengths" in text
