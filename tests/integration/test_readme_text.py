"""Commands of the READMEs that score and write text, from Python, and that look into language models."""

import shutil

from binarised_data import copy_data
from paths import SMALL_MODELS
from readme_commands import run_sections

COMMANDS = "fairseq_plugins/commands/LANGUAGE_MODELS.md"
TEXT = [("README.md", "From Python"), (COMMANDS, "Score and write text")]
ANALYSES = [
    (COMMANDS, "Evaluate language models"),
    (COMMANDS, "Look into language models"),
    (COMMANDS, "n-gram models"),
    ("fairseq_plugins/commands/README.md", "Compare runs"),
    ("scripts/README.md", "Speed and memory"),
]
SECTIONS = [*TEXT, *ANALYSES]


def test_text(tmp_path):
    for model, folder in (("lstm_lm_doc", "doc"), ("lstm_encdec_doc", "multi30k_doc")):
        (tmp_path / "checkpoints" / folder).mkdir(parents=True)
        shutil.copy(SMALL_MODELS / f"{model}.pt", tmp_path / "checkpoints" / folder / "checkpoint_best.pt")
    copy_data(SMALL_MODELS / "data/lm", tmp_path / "data-bin/ptb", tokenizer="blanks", case="kept")
    copy_data(SMALL_MODELS / "data/translation", tmp_path / "data-bin/m30k-joined.en-de", subwords=True)
    printed, by_commands = run_sections(TEXT, tmp_path)
    assert "nats -" in printed and "perplexity " in printed
    assert by_commands.count("the market") >= 5 and (tmp_path / "surprisal.png").stat().st_size


def test_commands(data, trained, tmp_path):
    copy_data(data, tmp_path / "data-bin/ptb")
    shutil.copytree(trained, tmp_path / "checkpoints/doc")
    run_sections(ANALYSES, tmp_path)
    assert "perplexity" in (tmp_path / "results/my_comparison/table.md").read_text()
    assert (tmp_path / "bands.png").stat().st_size and (tmp_path / "masking.png").stat().st_size
    assert (tmp_path / "results/my_experts/sentence_2.png").stat().st_size
    assert list((tmp_path / "results/my_benchmarks").glob("output_layer_*.md"))
