"""What the README says of reranking parses."""

import re

import pytest
from readme_commands import put_parses, run_sections

SECTIONS = [("fairseq_plugins/cli/README.md", "Rerank parses")]


@pytest.mark.slow
def test_parses(tmp_path):
    put_parses(tmp_path)
    (printed,) = run_sections(SECTIONS, tmp_path)
    rows = re.findall(r"^\| (\S+) +\|.* ([\d.]+) \| +([\d.]+) \| +(\d+) \|$", printed, re.M)
    assert [system for system, *_ in rows] == ["parser", "checkpoints/wsj/checkpoint_best.pt", "oracle"] * 2
    assert [row[1:] for row in rows if row[0] == "oracle"] == [("100.00", "100.00", "6"), ("100.00", "100.00", "5")]
    assert len((tmp_path / "results/my_trees/gold.test.reranked.trees").read_text().splitlines()) == 5
