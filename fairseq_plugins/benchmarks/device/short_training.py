"""Short trainings that show whether a device trains, in 16 bits, too."""

import math
import tempfile
from pathlib import Path
from typing import List, Sequence

from fairseq_plugins.benchmarks.device.corpora import demo_data
from fairseq_plugins.benchmarks.device.setting import Setting
from fairseq_plugins.benchmarks.device.step import Figures
from fairseq_plugins.benchmarks.training import train
from fairseq_plugins.recipes.recipe import Recipe, System, training_arguments
from fairseq_plugins.reports.training_log import read_log, read_loss_scales, read_losses

_COMMON = {"criterion": "regularized_cross_entropy", "optimizer": "adam", "lr": 0.002, "clip-norm": 1}
RECIPE = Recipe(
    name="device_check",
    title="Short trainings of a model of each kind",
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
    training=_COMMON,
    training_of_presets="left out",
)
PRECISIONS = {"float32": [], "fp16": ["--fp16"], "bf16": ["--bf16"], "amp": ["--amp"]}
"""Flags of each."""
SCALED = ("fp16", "amp")
"""Precisions whose gradients are scaled, which fairseq does on GPUs only."""


def training_data(setting: Setting, system: str) -> str:
    """The corpus that the user gave, for what it fits, or the demo's sentences."""
    task = str(RECIPE.flags(system)["task"])
    for folder in setting.data:
        if (folder / "dict.txt").exists() == (task == "stateful_lm"):
            return str(folder)
    return demo_data(setting, task=task)


def check_precision(setting: Setting, system: str, precision: str) -> Figures:
    """Train for a few updates in a precision; it is an error if the loss does not stay finite and go down.

    Where gradients are scaled, it is an error, too, if no scale is logged.
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
    """The log of a training that saves nothing."""
    with tempfile.TemporaryDirectory() as folder:
        limits = ["--max-update", str(setting.scale.num_check_updates), "--no-save", "--disable-validation"]
        log = Path(folder) / "train.log"
        train(short_training(setting, system, folder, more=[*limits, "--distributed-world-size", "1", *more]), log=log)
        return read_log(log)


def short_training(setting: Setting, system: str, save_dir: str, *, more: Sequence[str]) -> List[str]:
    """Arguments of ``fairseq-train`` for a system of :data:`RECIPE`, at the setting's scale; ``more`` come last."""
    widths = setting.scale.width_flags(RECIPE.system(system).flags)
    data = training_data(setting, system)
    flags = [*widths, *setting.device_flags, *more]
    return training_arguments(RECIPE, system, data=data, save_dir=save_dir, seed=1, more=flags)
