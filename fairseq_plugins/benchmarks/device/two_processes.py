"""Two processes that share the rows of an update against one that holds them all."""

import math
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Dict, Iterator, List, Sequence

import torch
from torch import Tensor

from fairseq_plugins.benchmarks.device.setting import Setting
from fairseq_plugins.benchmarks.device.short_training import short_training
from fairseq_plugins.benchmarks.device.step import Figures
from fairseq_plugins.benchmarks.training import train

ROWS, WINDOW = 8, 35
CHANGE = 1.0
"""Norm of the change of all weights: gradients are clipped to a norm that is below theirs, which the rate makes one."""
CLIP_NORM = 0.01
_DROPOUTS = [f"--dropout-{place}=0" for place in ("embedding", "input", "hidden", "output", "weight")]
_ONE_UPDATE = [
    *(*_DROPOUTS, "--latent-dropout=0", "--balance=0", f"--tokens-per-sample={WINDOW}", "--max-update=1"),
    *("--optimizer=sgd", f"--lr={CHANGE / CLIP_NORM}", f"--clip-norm={CLIP_NORM}", "--disable-validation"),
]


def check_two_processes(setting: Setting) -> Figures:
    """One update of a language model by one process and by two, which have half of the rows each.

    On GPUs each process has a device of its own; on a CPU both run there. A weight's gradient is a sum over the
    tokens, which errs by as many roundings of float32 as there are tokens at most, and storing the weight is one
    rounding more. It is an error if the weights afterwards, as one vector, differ by more.
    """
    if setting.device == "cuda" and torch.cuda.device_count() < 2:
        return {"skipped": "there is one device"}
    with tempfile.TemporaryDirectory() as folder, _without_tf32():
        one = _weights(setting, Path(folder) / "one", num_processes=1)
        two = _weights(setting, Path(folder) / "two", num_processes=2)
    if one.keys() != two.keys():
        return {"error": f"other weights than one process: {', '.join(sorted(one.keys() ^ two.keys()))}"}
    size = _norm([*one.values()])
    error = _norm([two[name] - one[name] for name in one]) / CHANGE
    allowed = torch.finfo(torch.float32).eps * (ROWS * WINDOW + size / CHANGE)
    figures: Figures = {"relative_error": error, "share": error / allowed, "tensor": "all weights"}
    if not error <= allowed:
        figures["error"] = f"two processes err by {error / allowed:.3g} times what rounding allows"
    return figures


def _weights(setting: Setting, save_dir: Path, *, num_processes: int) -> Dict[str, Tensor]:
    """The model after one update."""
    save_dir.mkdir()
    rows = ["--batch-size", str(ROWS // num_processes), "--distributed-world-size", str(num_processes)]
    ranks: List[List[str]] = [[]]
    if num_processes > 1:
        rows += ["--ddp-backend", "legacy_ddp"]
    if num_processes > 1 and setting.device == "cpu":
        rows += ["--distributed-no-spawn", "--distributed-backend", "gloo"]
        rows += ["--distributed-init-method", f"file://{save_dir / 'rendezvous'}"]
        ranks = [["--distributed-rank", str(rank)] for rank in range(num_processes)]

    def run(rank: Sequence[str]) -> None:
        more = [*_ONE_UPDATE, *rows, *rank]
        train(short_training(setting, "lm", str(save_dir), more=more), log=save_dir / f"train{'.'.join(rank)}.log")

    with ThreadPoolExecutor(len(ranks)) as pool:
        list(pool.map(run, ranks))
    checkpoint = torch.load(save_dir / "checkpoint_last.pt", map_location="cpu", weights_only=True)
    return {name: weight.double() for name, weight in checkpoint["model"].items()}


def _norm(tensors: Sequence[Tensor]) -> float:
    return math.hypot(*(torch.linalg.vector_norm(x).item() for x in tensors))


@contextmanager
def _without_tf32() -> Iterator[None]:
    """Processes that are started within the context take strict float32 where torch would take TF32."""
    name = "NVIDIA_TF32_OVERRIDE"
    before = os.environ.get(name)
    os.environ[name] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
