"""Which kernels run a recurrent cell, and what torch warns of."""

import warnings
from contextlib import contextmanager
from typing import Iterator, List

import torch
from torch import nn

from fairseq_plugins.benchmarks.device.backward_nodes import is_run_by_cudnn
from fairseq_plugins.benchmarks.device.comparison import prepared
from fairseq_plugins.benchmarks.device.component_computations import cell_computations
from fairseq_plugins.benchmarks.device.step import Figures
from fairseq_plugins.modules.lstm import LSTMLayer

DROPOUT = 0.5
"""Of the cells, so that recurrent matrices are no parameters."""


def check_kernels(cell: str, *, device: str) -> Figures:
    """Run a cell forwards and backwards in training and evaluation.

    It is an error if torch warns that weights do not lie side by side, so that cuDNN copies them at every call, or if a
    cell that calls torch's LSTM is not run by cuDNN on a GPU that has it.
    """
    told: List[str] = []
    calls_lstm = by_cudnn = False
    for computation in cell_computations(cell, dropout=DROPOUT):
        module, inputs = prepared(computation, device=device, dtype=torch.float32)
        with _every_warning() as caught:
            results = [x for x in computation.compute(module, inputs).values() if x.requires_grad]
            by_cudnn = by_cudnn or is_run_by_cudnn(results)
            torch.stack([x.sum() for x in results]).sum().backward()
        told += [f"{computation.name}: {warning.message}" for warning in caught]
        calls_lstm = calls_lstm or any(_calls_lstm(layer) for layer in module.modules())
    figures: Figures = {"kernel": "cuDNN" if by_cudnn else "other", "warnings": told}
    of_weights = [text for text in told if "contiguous" in text]
    if of_weights:
        figures["error"] = f"torch warns: {of_weights[0]}"
    elif calls_lstm and not by_cudnn and device == "cuda" and torch.backends.cudnn.is_available():
        figures["error"] = "is not run by cuDNN"
    return figures


def _calls_lstm(layer: nn.Module) -> bool:
    return isinstance(layer, LSTMLayer) and type(layer).forward is LSTMLayer.forward


@contextmanager
def _every_warning() -> Iterator[List[warnings.WarningMessage]]:
    """The warnings within the context, those that torch gave before among them."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield caught
    finally:
        torch.set_warn_always(before)
