"""Commands of the READMEs for translation, training in several processes, headlines and parses."""

import re

from generated_corpora import write_parses
from readme_commands import run_sections
from small_corpora import agnews_files, multi30k_files, write_files

COMMANDS = "fairseq_plugins/commands/TRANSLATION.md"
TRANSLATION = [
    ("README.md", "Translation"),
    (COMMANDS, "Rescore n-best lists"),
    (COMMANDS, "Choose checkpoints by BLEU or ROUGE"),
    ("CONTRIBUTING.md", "Several processes"),
]
HEADLINES = [("README.md", "Headlines"), (COMMANDS, "Translations and headlines")]
PARSES = [("fairseq_plugins/commands/LANGUAGE_MODELS.md", "Rerank parses")]
SECTIONS = [*TRANSLATION, *HEADLINES, *PARSES]


def test_translation_and_two_processes(tmp_path):
    write_files(tmp_path / "downloads/multi30k", multi30k_files())
    translated, rescored, *_ = run_sections(TRANSLATION, tmp_path)
    assert "tok:13a" in translated
    assert rescored.count("BLEU") == 2 and (tmp_path / "results/my_attention/sentence_1.png").stat().st_size
    assert (tmp_path / "checkpoints/by_bleu/checkpoint_best.pt").exists()
    assert (tmp_path / "checkpoints/two/checkpoint_best.pt").exists()


def test_headlines(tmp_path):
    write_files(tmp_path / "downloads/agnews", agnews_files())
    outputs = run_sections(HEADLINES, tmp_path)
    assert "rouge-score" in outputs[0]
    assert "first 8 words" in (tmp_path / "results/my_headlines/table.md").read_text()


def test_parses(tmp_path):
    write_parses(tmp_path / "downloads/wsj-sample")
    (printed,) = run_sections(PARSES, tmp_path)
    rows = re.findall(r"^\| (\S+) +\|.* ([\d.]+) \| +([\d.]+) \| +(\d+) \|$", printed, re.M)
    assert [system for system, *_ in rows] == ["parser", "checkpoints/wsj/checkpoint_best.pt", "oracle"] * 2
    assert [row[1:] for row in rows if row[0] == "oracle"] == [("100.00", "100.00", "6"), ("100.00", "100.00", "5")]
    assert len((tmp_path / "results/my_trees/gold.test.reranked.trees").read_text().splitlines()) == 5
