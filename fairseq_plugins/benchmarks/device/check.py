"""The step that checks a device."""

from functools import partial
from typing import List, Mapping

import torch

from fairseq_plugins.benchmarks.device.comparison import CUDNN_ROUNDINGS, compare
from fairseq_plugins.benchmarks.device.component_computations import component_computations
from fairseq_plugins.benchmarks.device.kernels import check_kernels
from fairseq_plugins.benchmarks.device.op_computations import op_computations
from fairseq_plugins.benchmarks.device.short_training import PRECISIONS, RECIPE, check_precision
from fairseq_plugins.benchmarks.device.step import Figures, Item, Step, state_of
from fairseq_plugins.benchmarks.device.two_processes import check_two_processes
from fairseq_plugins.modules.cell import RECURRENT_CELLS
from fairseq_plugins.reports.tables import as_table

DTYPES = {"float64": torch.float64, "float32": torch.float32}
TWO_PROCESSES = "two processes"


class Check(Step):
    """Values and gradients of every op, layer and cell, kernels, 16-bit trainings and two processes."""

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
        compared = {name: figures for name, figures in found.items() if _is_compared(figures)}
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


def _is_compared(figures: Figures) -> bool:
    return "share" in figures


def _compared_row(name: str, figures: Figures) -> List[str]:
    error, share = (
        "not finite" if figures[key] is None else f"{figures[key]:{digits}}"  # JSON has null in its place
        for key, digits in (("relative_error", ".1e"), ("share", ".3f"))
    )
    return [name, error, share, figures["tensor"], state_of(figures)]


def _training_row(name: str, figures: Figures) -> List[object]:
    found = [figures.get(key) for key in ("first_loss", "last_loss")]
    losses = ["" if loss is None else f"{loss:.3f}" for loss in found]
    return [name, *losses, figures.get("updates"), figures.get("loss_scale"), state_of(figures)]
