"""The plugin works from an installed package and from a bare checkout, whatever else is installed."""

import os
import shutil
import subprocess
import sys

from commands import ENVIRONMENT, ROOT, command


def train_two_updates(data, user_dir, arch, *, cwd, **environment):
    flags = ["--user-dir", user_dir, "--arch", arch, "--task", "stateful_lm", "--batch-size", 2, "--cpu"]
    flags += ["--optimizer", "nt_asgd", "--criterion", "regularized_cross_entropy", "--max-update", 2, "--no-save"]
    result = subprocess.run(
        command("fairseq_cli.train", data, *flags),
        cwd=cwd,
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-2000:]


def copy_package(destination):
    shutil.copytree(ROOT / "fairseq_plugins", destination, ignore=shutil.ignore_patterns("__pycache__"))
    return destination


def test_bare_checkout_wins_over_an_installed_package(data, tmp_path):
    package = copy_package(tmp_path / "a checkout/fairseq_plugins")
    with open(package / "models/recurrent_lm_presets.py", "a") as presets:
        presets.write('\nARCHITECTURES["lstm_lm_of_the_checkout"] = ARCHITECTURES["lstm_lm_doc"]\n')
    train_two_updates(data, "fairseq_plugins", "lstm_lm_of_the_checkout", cwd=package.parent)


def test_plain_install(data, tmp_path):
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
    assert len(list((site / "fairseq_plugins/demo_corpus").glob("*.gz"))) == 6
    train_two_updates(data, site / "fairseq_plugins", "lstm_lm_mos", cwd=tmp_path, PYTHONPATH=str(site))
