"""The plugin works from an installed package and from a bare checkout, whatever else is installed."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from commands import ENVIRONMENT, ROOT, command

pytestmark = pytest.mark.slow


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
    with open(package / "models/presets/__init__.py", "a") as presets:
        presets.write('\nLANGUAGE_MODELS["lstm_lm_of_the_checkout"] = LANGUAGE_MODELS["lstm_lm_doc"]\n')
    train_two_updates(data, "fairseq_plugins", "lstm_lm_of_the_checkout", cwd=package.parent)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the package as ``pip install .`` leaves it; its dependencies are those of the tests."""
    folder = tmp_path_factory.mktemp("installation")
    source = folder / "source"
    copy_package(source / "fairseq_plugins")
    for name in ("setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    flags = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", folder / "site", source]
    subprocess.run([sys.executable, "-m", "pip", "install", *flags], check=True, capture_output=True)
    return folder / "site"


def test_plain_install(site, data, tmp_path):
    found = "importlib.util.find_spec('fairseq_plugins').submodule_search_locations[0]"
    where = [sys.executable, "-c", f"import importlib.util; print({found})"]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    installed = subprocess.run(where, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert installed.stdout.strip() == str(site / "fairseq_plugins")
    assert len(list((site / "fairseq_plugins/demo_corpus").glob("*.gz"))) == 6
    train_two_updates(data, site / "fairseq_plugins", "lstm_lm_mos", cwd=tmp_path, PYTHONPATH=str(site))


def test_an_installed_package_makes_the_table_and_the_picture_of_a_benchmark(site, tmp_path):
    flags = ["1000,2,16,50", "--repetitions", 1, "--cpu", "--out", "my results"]
    result = subprocess.run(
        command("fairseq_plugins.cli.benchmark_output_layer", *flags),
        cwd=tmp_path,
        env={**ENVIRONMENT, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    stem = tmp_path / "my results/output_layer_cpu_float32"
    assert stem.with_suffix(".md").read_text() == result.stdout
    assert re.search(r"^\| 1,000 +\| +2 \| +16 \| +50 \| +[\d,]+ ms \|", result.stdout, re.M)
    assert re.search(r"benchmark_output_layer 1000,2,16,50 .*`; [\d-]+, fairseq-plugins 0\.", result.stdout)
    figures = json.loads(stem.with_suffix(".json").read_text())
    (case,) = figures["cases"]
    assert case["num_experts"] == 2 and case["seconds"]["fused"] > 0 and case["memory_bytes"]["fused"]["peak"] > 0
    assert stem.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
