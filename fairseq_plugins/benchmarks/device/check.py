"""The step ``check``: values and gradients against the CPU, kernels, training in 16 bits, and two processes."""

import math
import os
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, Sequence

import torch
from torch import Tensor, nn

from fairseq_plugins.benchmarks.device.comparison import CUDNN_ROUNDINGS, compare, is_run_by_cudnn, prepared
from fairseq_plugins.benchmarks.device.computations import cell_computations, component_computations, op_computations
from fairseq_plugins.benchmarks.device.record import Figures, Item, Step, state_of
from fairseq_plugins.benchmarks.device.setting import Setting, demo_data
from fairseq_plugins.benchmarks.training import train
from fairseq_plugins.modules.cell import RECURRENT_CELLS
from fairseq_plugins.modules.lstm import LSTMLayer
from fairseq_plugins.recipes.recipe import Recipe, System, training_arguments
from fairseq_plugins.reports.tables import as_table
from fairseq_plugins.reports.training_log import read_log, read_loss_scales, read_losses

DTYPES = {"float64": torch.float64, "float32": torch.float32}
TWO_PROCESSES = "two processes"


class Check(Step):
    """Checks of every op, layer and cell, of kernels, of training in each precision, and of two processes."""

    name = "check"

    def items(self) -> List[Item]:
        device = self.setting.device
        items = [
            Item(f"{computation.name}, {name}", partial(compare, computation, device=device, dtype=dtype))
            for computation in (*op_computations(), *component_computations())
            for name, dtype in DTYPES.items()
        ]
        items += [
            Item(f"kernels of {cell}", partial(check_kernels, cell, device=device)) for cell in sorted(RECURRENT_CELLS)
        ]
        items += [
            Item(
                f"training of {RECIPE.label(system)}, {precision}",
                partial(check_precision, self.setting, system, precision),
            )
            for system in RECIPE.systems
            for precision in PRECISIONS
        ]
        return [*items, Item(TWO_PROCESSES, partial(check_two_processes, self.setting))]

    def tables(self, found: Mapping[str, Figures]) -> str:
        compared = {name: figures for name, figures in found.items() if "share" in figures}
        kernels = {name: figures for name, figures in found.items() if "kernel" in figures}
        others = {name: figures for name, figures in found.items() if name not in {**compared, **kernels}}
        failed = [f"{name}: {figures['error']}" for name, figures in found.items() if "error" in figures]
        parts = [
            f"{len(found)} items checked, {len(failed)} failed.",
            *(f"- FAILED: {text}" for text in failed),
            "",
            "An error is that of a tensor, a norm relative to that of the exact one, the CPU's in float64. Rounding "
            "allows as many roundings of the type as the CPU's float32 errs by, times sqrt(n), n the elements of the "
            "largest tensor; float32 is strict, without TF32; what cuDNN's recurrent kernel computes in it may err by "
            f"{CUDNN_ROUNDINGS} times as much.",
            "",
            as_table(
                ["on this device and on the CPU", "largest error", "share of what rounding allows", "tensor", "state"],
                [_compared_row(name, figures) for name, figures in compared.items()],
            ),
            "",
            as_table(
                ["forwards and backwards in training and evaluation", "kernel", "warnings", "state"],
                [
                    [name, figures["kernel"], len(figures["warnings"]), state_of(figures)]
                    for name, figures in kernels.items()
                ],
            ),
            "",
            as_table(
                ["fairseq-train", "first loss", "last loss", "updates", "scale of gradients", "state"],
                [_training_row(name, figures) for name, figures in others.items()],
            ),
        ]
        return "\n".join(parts)


def _compared_row(name: str, figures: Figures) -> List[str]:
    error, share = (
        "not finite" if figures[key] is None else f"{figures[key]:{digits}}"  # JSON has null for inf and NaN
        for key, digits in (("relative_error", ".1e"), ("share", ".3f"))
    )
    return [name, error, share, figures["tensor"], state_of(figures)]


def _training_row(name: str, figures: Figures) -> List[object]:
    found = [figures.get(key) for key in ("first_loss", "last_loss")]
    losses = ["" if loss is None else f"{loss:.3f}" for loss in found]
    return [name, *losses, figures.get("updates"), figures.get("loss_scale"), state_of(figures)]


DROPOUT = 0.5
"""Dropout of the cells. It makes recurrent matrices computed tensors, whose layout in memory cuDNN may not accept."""


def check_kernels(cell: str, *, device: str) -> Figures:
    """Run a cell forward and backward in training and evaluation, and look at its kernels and warnings.

    It is an error if torch warns that weights are not contiguous, because cuDNN then copies them at every call. It is
    an error, too, if a cell that calls torch's LSTM does not run in cuDNN on a GPU that has it.
    """
    messages: List[str] = []
    calls_lstm = by_cudnn = False
    for computation in cell_computations(cell, dropout=DROPOUT):
        module, inputs = prepared(computation, device=device, dtype=torch.float32)
        with _every_warning() as caught:
            results = [x for x in computation.compute(module, inputs).values() if x.requires_grad]
            by_cudnn = by_cudnn or is_run_by_cudnn(results)
            torch.stack([x.sum() for x in results]).sum().backward()
        messages += [f"{computation.name}: {warning.message}" for warning in caught]
        calls_lstm = calls_lstm or any(_calls_lstm(layer) for layer in module.modules())
    figures: Figures = {"kernel": "cuDNN" if by_cudnn else "other", "warnings": messages}
    layout = [message for message in messages if "contiguous" in message]
    if layout:
        figures["error"] = f"torch warns: {layout[0]}"
    elif calls_lstm and not by_cudnn and device == "cuda" and torch.backends.cudnn.is_available():
        figures["error"] = "is not run by cuDNN"
    return figures


def _calls_lstm(layer: nn.Module) -> bool:
    return isinstance(layer, LSTMLayer) and type(layer).forward is LSTMLayer.forward


@contextmanager
def _every_warning() -> Iterator[List[warnings.WarningMessage]]:
    """All warnings within the context, including those that torch gives only once."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield caught
    finally:
        torch.set_warn_always(before)


RECIPE = Recipe(
    name="device_check",
    title="Short training runs of one model of each kind",
    corpus="the demo's sentences",
    systems={
        "lm": System(
            {
                "arch": "lstm_lm_doc",
                "task": "stateful_lm",
                "embed-dim": 128,
                "hidden-sizes": "256 256 128",
                "balance": 0.001,
                "batch-size": 20,
                "tokens-per-sample": 35,
            },
            label="lstm_lm_doc",
        ),
        "encdec": System(
            {
                "arch": "lstm_encdec_doc",
                "task": "translation",
                "embed-dim": 128,
                "hidden-sizes": "128 128",
                "expert-warmup": 5,
                "batch-size": 64,
            },
            label="lstm_encdec_doc",
        ),
        "transformer": System(
            {
                "arch": "transformer_doc",
                "task": "translation",
                "encoder-embed-dim": 128,
                "encoder-ffn-embed-dim": 256,
                "decoder-embed-dim": 128,
                "decoder-ffn-embed-dim": 256,
                "batch-size": 64,
            },
            label="transformer_doc",
        ),
    },
    training={"criterion": "regularized_cross_entropy", "optimizer": "adam", "lr": 0.002, "clip-norm": 1},
    training_of_presets="left out",
)
PRECISIONS: Dict[str, List[str]] = {"float32": [], "fp16": ["--fp16"], "bf16": ["--bf16"], "amp": ["--amp"]}
"""Flags of ``fairseq-train`` for each precision."""
SCALED = ("fp16", "amp")
"""Precisions in which fairseq scales the gradients. It does so on GPUs only."""


def training_data(setting: Setting, system: str) -> str:
    """The first corpus of the user that fits the task of a system, or the demo's sentences."""
    task = str(RECIPE.flags(system)["task"])
    for folder in setting.data:
        if (folder / "dict.txt").exists() == (task == "stateful_lm"):
            return str(folder)
    return demo_data(setting, task=task)


def check_precision(setting: Setting, system: str, precision: str) -> Figures:
    """Train a system for a few updates in a precision. The loss must stay finite and fall.

    If the precision scales gradients, the scale must be logged.
    """
    if precision in SCALED and setting.device == "cpu":
        return {"skipped": "the scaler needs a GPU"}
    log = _train(setting, system, more=[*PRECISIONS[precision], "--log-interval", "1"])
    losses, scales = read_losses(log), read_loss_scales(log)
    figures: Figures = {"first_loss": losses[0], "last_loss": losses[-1], "updates": len(losses)}
    if precision in SCALED:
        figures["loss_scale"] = scales[-1] if scales else None
    if not all(map(math.isfinite, losses)):
        figures["error"] = "the loss is not finite"
    elif losses[-1] >= losses[0]:
        figures["error"] = f"the loss rose from {losses[0]:.3f} to {losses[-1]:.3f}"
    elif precision in SCALED and not scales:
        figures["error"] = "no scale of the gradients is logged"
    return figures


def _train(setting: Setting, system: str, *, more: Sequence[str]) -> str:
    """Train without saving anything, and return the log."""
    with tempfile.TemporaryDirectory() as folder:
        limits = ["--max-update", str(setting.scale.num_check_updates), "--no-save", "--disable-validation"]
        log = Path(folder) / "train.log"
        train(short_training(setting, system, folder, more=[*limits, "--distributed-world-size", "1", *more]), log=log)
        return read_log(log)


def short_training(setting: Setting, system: str, save_dir: str, *, more: Sequence[str]) -> List[str]:
    """Arguments of ``fairseq-train`` for a system of :data:`RECIPE` at the setting's scale, followed by ``more``."""
    widths = setting.scale.width_flags(RECIPE.system(system).flags)
    data = training_data(setting, system)
    flags = [*widths, *setting.device_flags, *more]
    return training_arguments(RECIPE, system, data=data, save_dir=save_dir, seed=1, more=flags)


# One update by two processes, which have half of the rows each, against the same update by one process.

ROWS, WINDOW = 8, 35
CHANGE = 1.0
"""Norm of the change of all weights. Gradients are clipped to a smaller norm than they have, so that the learning rate
alone decides how far the update goes."""
CLIP_NORM = 0.01
_DROPOUTS = [f"--dropout-{place}=0" for place in ("embedding", "input", "hidden", "output", "weight")]
_ONE_UPDATE = [
    *(*_DROPOUTS, "--latent-dropout=0", "--balance=0", f"--tokens-per-sample={WINDOW}", "--max-update=1"),
    *("--optimizer=sgd", f"--lr={CHANGE / CLIP_NORM}", f"--clip-norm={CLIP_NORM}", "--disable-validation"),
]


def check_two_processes(setting: Setting) -> Figures:
    """Train a language model for one update in one process and in two, and compare the weights as one vector.

    On GPUs, each process has its own device. On a CPU, both run there. The gradient of a weight is a sum over tokens,
    so it errs by at most as many roundings of float32 as there are tokens. Storing the weight adds one rounding.
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
    """Weights of the model after one update, in float64."""
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
    """Processes that are started within the context use strict float32 instead of TF32."""
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
