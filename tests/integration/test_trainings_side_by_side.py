"""A recipe's table from trainings that run side by side."""

import json
import re

import pytest
from commands import run

SMALL = ["--embed-dim", 12, "--hidden-sizes", "16 16 12", "--batch-size", 4, "--max-update", 2, "--cpu"]


@pytest.mark.slow
def test_trainings_side_by_side_make_one_table(data, tmp_path):
    systems = ["--systems", "tied", "tied-averaged", "--seeds", 1, 2, "--jobs", 2]
    where = ["--save-dir", tmp_path / "runs", "--out", tmp_path / "out"]
    result = run("fairseq_plugins.cli.run_recipe", "reduced", data, *systems, *where, *SMALL)
    assert result.returncode == 0, result.stderr[-3000:]
    begun = re.findall(r"^== (\S+) begins \(\d of 4\)$", result.stderr, re.M)
    assert begun[:2] == ["tied-1", "tied-2"]
    assert sorted(begun) == ["tied-1", "tied-2", "tied-averaged-1", "tied-averaged-2"]
    runs = json.loads((tmp_path / "out/runs.json").read_text())["runs"]
    assert [(one["name"], one["seed"]) for one in runs] == [
        (name, seed) for name in ("tied", "tied-averaged") for seed in (1, 2)
    ]
    for name in begun:
        assert "| valid | epoch 001" in (tmp_path / "runs" / name / "train.log").read_text()
