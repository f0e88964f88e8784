"""Runs the commands of the READMEs as they are printed, on small corpora and for a few updates."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, Sequence, Tuple

from commands import ENVIRONMENT
from paths import ROOT

BLOCK = r"```(bash|python)\n(.*?)```"
SMALL_ENCDEC = "--embed-dim 16 --hidden-sizes '16 16' --batch-size 8 --cpu"
# appended to a command, so that it ends soon
ADDITIONS = {
    "fairseq-plugins train ptb_small": (
        "--max-update 2 --warmup-updates 1 --embed-dim 20 --hidden-sizes '20 20' --batch-size 4 --cpu"
    ),
    "fairseq-plugins train presets lstm_lm_zaremba_medium_ptb": (
        "--max-update 2 --embed-dim 20 --hidden-sizes '20 20' --batch-size 4 --cpu"
    ),
    "fairseq-plugins train presets gated_lm_ptb": "--max-update 2 --gate-dim 8 --batch-size 4 --cpu",
    "fairseq-plugins train wsj_sample": "--max-update 2 --embed-dim 20 --hidden-sizes '20 20 20' --batch-size 4 --cpu",
    "fairseq-plugins train multi30k_joined": f"--max-update 2 {SMALL_ENCDEC}",
    "fairseq-plugins train agnews": f"--max-update 2 {SMALL_ENCDEC}",
    "scripts/evaluate_(bleu|rouge).sh": "-- --max-len-b 10",
}
# replaced in commands that train by hand
SHORTER = {
    "--user-dir fairseq_plugins": "--user-dir fairseq_plugins --num-workers 0",  # a worker takes seconds to end
    "--arch lstm_lm_doc": "--arch lstm_lm_doc --embed-dim 20 --hidden-sizes '20 20 20' --cpu",
    "--arch lstm_encdec_doc": "--arch lstm_encdec_doc --embed-dim 16 --hidden-sizes '16 16'",
    "--arch fpnn_lm_text8_words": "--arch fpnn_lm_text8_words --embed-dim 20 --hidden-sizes 20 --cpu",
    "--batch-size 64": "--batch-size 4",
    "--max-epoch 5": "--max-update 2",
    "_name: lstm_lm_doc": "_name: lstm_lm_doc, embed_dim: 20, hidden_sizes: 20 20 20",
    "batch_size: 20": "batch_size: 4, num_workers: 0",
    "max_epoch: 5": "max_update: 2",
    "--max-epoch 6": "--max-update 2",
    "--words in of go --min-count 100": "--words '</s>' --min-count 1",  # the small text has other words
    "--beam 5 --nbest 5": "--beam 5 --nbest 5 --max-len-b 10",
    "--probabilities 0 0.25 0.5 --runs 2": "--probabilities 0 0.5 --runs 1",
    "10000,4,64,100 --repetitions 3": "1000,4,64,100 --repetitions 1",
}


def documented_sections(document: str) -> List[str]:
    """Titles of the sections that have commands or Python."""
    return [title for title, blocks in _sections(document).items() if blocks]


def _sections(document: str) -> Dict[str, List[str]]:
    parts = re.split(r"^##? (?!\S+\.py$)", (ROOT / document).read_text(encoding="utf-8"), flags=re.M)
    titled = (part.partition("\n") for part in parts)
    return {title: [_as_bash(*block) for block in re.findall(BLOCK, content, re.S)] for title, _, content in titled}


def _as_bash(language: str, block: str) -> str:
    """Code of a page; a block of Python that begins with the name of a file is written there, others are run."""
    if language == "bash":
        return block
    if named := re.match(r"# (\S+)/(\S+\.py)\n", block):
        return f"mkdir -p {named[1]} && cat > {named[1]}/{named[2]} <<'END'\n{block}END\n"
    return f"cat > block.py <<'END'\n{block}END\n{sys.executable} block.py\n"


def shortened(command: str) -> str:
    """A command that ends soon."""
    command = re.sub(r" +#.*$", "", command.replace("\\\n", " "), flags=re.M)
    for part, addition in ADDITIONS.items():
        command = re.sub(rf"^(.*{part} .*)$", rf"\1 {addition}", command, flags=re.M)
    for part, replacement in SHORTER.items():
        command = command.replace(part, replacement)
    return command


def run_sections(sections: Sequence[Tuple[str, str]], folder: Path) -> List[str]:
    """Run the bash and Python blocks of sections in a folder that looks like the checkout; what each prints.

    Args:
        sections: documents and titles.
        folder: where ``downloads`` of the corpora lie.
    """
    for name in ("data-prep", "fairseq_plugins", "scripts"):
        (folder / name).symlink_to(ROOT / name)
    outputs = []
    for document, title in sections:
        for block in _sections(document)[title]:
            result = subprocess.run(
                ["bash", "-e", "-o", "pipefail", "-c", shortened(block)],
                cwd=folder,
                env={**ENVIRONMENT, "PYTHONPATH": str(ROOT), "EXPECTED_COUNTS": "skip"},
                capture_output=True,
                text=True,
                timeout=300,
            )
            assert result.returncode == 0, f"{shortened(block)}\n{(result.stdout + result.stderr)[-3000:]}"
            outputs.append(result.stdout)
    return outputs
