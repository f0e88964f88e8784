"""Command lines that write files, and what they leave."""

import json
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple

import torch
from workplace import ROOT, contents

PLUGINS = str(ROOT / "fairseq_plugins")
TRAINING = [
    *("--user-dir", PLUGINS, "--cpu", "--num-workers", "0", "--log-format", "simple"),
    *("--task", "stateful_lm", "--arch", "lstm_lm_doc", "--embed-dim", "8", "--hidden-sizes", "8 8"),
    *("--experts-per-layer", "0 1 2", "--batch-size", "4", "--batch-size-valid", "2", "--tokens-per-sample", "20"),
    *("--optimizer", "nt_asgd", "--nonmonotone-interval", "0", "--lr", "1", "--max-epoch", "3"),
]


class Writing(NamedTuple):
    """A command line.

    Attributes:
        words: the module or file, and its arguments.
        result: what counts of what it has written to a folder.
    """

    words: List[str]
    result: Callable[[Path], object]


def _files(*names: str) -> Callable[[Path], object]:
    def result(folder: Path) -> object:
        return {name: digest for name, digest in contents(folder).items() if name in names}

    return result


def _below(parent: str) -> Callable[[Path], object]:
    def result(folder: Path) -> object:
        there = contents(folder / parent)
        return {name: digest for name, digest in there.items() if not name.endswith((".lock", ".log"))}

    return result


def _weights(folder: Path) -> object:
    """Weights of all checkpoints, and names of all files."""
    names = sorted(path.name for path in (folder / "trained").iterdir())
    states = {name: torch.load(folder / "trained" / name)["model"] for name in names if name.endswith(".pt")}
    return names, {name: {key: value.tolist() for key, value in state.items()} for name, state in states.items()}


def _comparison(folder: Path) -> object:
    """Names of the files, and what was measured, without speed."""
    runs = json.loads((folder / "out/runs.json").read_text())
    return sorted(path.name for path in (folder / "out").glob("[!.]*")), json.dumps(runs).count("perplexity")


WRITINGS: Dict[str, Writing] = {
    "training": Writing(["fairseq_cli.train", "lm", "--save-dir", "trained", *TRAINING], _weights),
    "average": Writing(
        [
            *("fairseq_plugins.cli.average_checkpoints", "--path", "run/checkpoint1.pt", "run/checkpoint2.pt"),
            *("--out", "mean.pt"),
        ],
        _files("mean.pt"),
    ),
    "prepared corpus": Writing(
        [
            *(str(ROOT / "data-prep/prepare.py"), "wsj", "--from", "downloads"),
            *("--dest", "prepared", "--work", "work"),
        ],
        _below("prepared"),
    ),
    "n-grams": Writing(
        ["fairseq_plugins.cli.train_ngram", "lm", "--order", "2", "--out", "written.arpa"], _files("written.arpa")
    ),
    "statistics": Writing(
        [
            *("fairseq_plugins.cli.evaluate_lm", "lm", "--path", "lm.pt", "--cpu"),
            *("--dynamic", "rms", "--dynamic-rows", "2", "--dynamic-segment", "6"),
        ],
        _files("lm.gradients-2x6.pt"),
    ),
    "comparison": Writing(["fairseq_plugins.cli.compare_runs", "lm", "--path", "A=run", "--out", "out"], _comparison),
}
