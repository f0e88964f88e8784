"""Record what tests/golden compares with, after a change that is meant to be one.

    PYTHONPATH=.:tests python tests/golden/record.py

It replaces tests/fixtures/golden.json; look at the difference before it is committed.
"""

import json
from pathlib import Path
from typing import List

import torch
import torch._dynamo  # noqa: F401  which optimisers import
from forks import in_fork
from paths import ROOT
from short_trainings import FAMILIES, train

import fairseq_plugins  # noqa: F401  imported once, for all forks

RECORD = ROOT / "tests/fixtures/golden.json"
NUM_UPDATES = 25
"""Beyond the warm-up of DOC, which has 20."""


def losses_of(name: str, folder: Path) -> List[float]:
    """Loss at every update of one family's training, in a process of its own.

    Args:
        folder: where the process runs.
    """

    def work() -> None:
        losses: List[float] = []
        train(name, num_updates=NUM_UPDATES, heard=losses.append, dtype=torch.float64)
        print(f"\n{json.dumps([round(loss, 8) for loss in losses])}")

    ended = in_fork(work, folder=folder)
    assert ended.status == 0, ended.err[-3000:]
    return json.loads(ended.out.splitlines()[-1])


if __name__ == "__main__":
    record = {}
    for name in FAMILIES:
        print(f"{name} ...", flush=True)
        record[name] = losses_of(name, Path.cwd())
    text = ",\n".join(f"{json.dumps(name)}: {json.dumps(losses)}" for name, losses in record.items())
    RECORD.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")
