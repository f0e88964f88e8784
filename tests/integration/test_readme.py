"""The README's commands run as they are printed, on a small corpus and for a few updates."""

import csv
import gzip
import re
import shutil
import subprocess

import pytest
from commands import ENVIRONMENT, ROOT
from generated_corpora.headlines import write_headlines
from generated_corpora.translations import write_translations

SMALL = "--embed-dim 20 --hidden-sizes '20 20 20' --experts-per-layer '0 0 1 1' --batch-size 2 --cpu"
SMALL_ENCDEC = "--embed-dim 16 --hidden-sizes '16 16' --batch-size 8 --cpu"
# appended to a command, so that it ends soon
ADDITIONS = {
    "fairseq-train": "--max-update 2 --cpu --log-format simple --log-interval 1",
    "train_preset.sh": f"--max-update 1 --disable-validation {SMALL}",
    "fine_tune.sh": f"1 --max-update 1 {SMALL}",
    "recipes/translation": f"--max-update 2 {SMALL_ENCDEC}",
    "recipes/headline": f"--max-update 2 {SMALL_ENCDEC}",
}
RUN_BY_OTHERS = ("git clone", "bash scripts/setup.sh", "source ", "bash scripts/demo.sh", "bash scripts/test.sh")


def readme_commands():
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in lines if not line.startswith(RUN_BY_OTHERS)]


def write_captions(folder):
    """A small corpus in the layout of Multi30k."""
    folder.mkdir(parents=True)
    write_translations(folder, num_pairs=60)
    for split, name in (("train", "train"), ("valid", "val"), ("test", "test_2016_flickr")):
        for language in ("en", "de"):
            path = folder / f"{split}.{language}"
            (folder / f"{name}.{language}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()


def write_news(folder):
    """A small corpus in the layout of AG News."""
    generated = folder / "generated"
    write_headlines(generated, num_pairs=1000)
    articles, titles = ((generated / f"train.{kind}.txt").read_text().splitlines() for kind in ("article", "title"))
    with (folder / "sample.csv").open("w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(("1", *item) for item in zip(titles, articles))


@pytest.mark.slow
def test_commands_of_the_readme(text, tmp_path):
    for name in ("data-prep", "fairseq_plugins", "scripts"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(text, tmp_path / "downloads/ptb")
    write_captions(tmp_path / "downloads/multi30k")
    write_news(tmp_path / "downloads/agnews")
    commands = readme_commands()
    assert len(commands) >= 7
    for command in commands:
        for part, addition in ADDITIONS.items():
            if part in command:
                command += f" {addition}"
        if "fairseq-train" in command:
            command = f"mkdir -p checkpoints/doc; {command} 2>&1 | tee checkpoints/doc/train.log"
        if "doc_ptb" in command:
            command = command.replace("checkpoint_best.pt", "checkpoint_last.pt")  # there is no validation before it
        result = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=tmp_path,
            env={**ENVIRONMENT, "EXPECTED_COUNTS": "skip"},
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, f"{command}\n{(result.stdout + result.stderr)[-3000:]}"
    assert "tok:13a" in (tmp_path / "checkpoints/multi30k_doc/test/scores.txt").read_text()
    assert "rouge-score" in (tmp_path / "checkpoints/agnews_doc/test/rouge.txt").read_text()
    assert "| a random headline |" in (tmp_path / "results/my_headlines/table.md").read_text()
    assert "perplexity" in (tmp_path / "results/my_comparison/table.md").read_text()
