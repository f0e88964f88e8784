"""The step that measures the loss of output layers against its own matrix products."""

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Dict, List, Literal, Mapping, Optional, Tuple

import torch

from fairseq_plugins.benchmarks.device.precision import float32_products
from fairseq_plugins.benchmarks.device.step import Figures, Item, Step, failed_table
from fairseq_plugins.benchmarks.output_layer import (
    Case,
    Inputs,
    Method,
    allocated_peak,
    floor,
    fused,
    median_times,
    own_chunk_size,
)
from fairseq_plugins.ops.mixture_loss import even_chunk_size
from fairseq_plugins.reports.tables import as_table

NUMBERS_OF_CHUNKS = (1, 2, 4, 8, 16, 32)
OWN = "own"
"""The number of chunks that the loss takes by itself."""


@dataclass(frozen=True)
class Precision:
    """How operands of the products are kept.

    Attributes:
        dtype: of the inputs.
        products: of float32 operands.
        chunk_dtype: of a chunk's operands, logits and probabilities, or None for that of the inputs.
    """

    dtype: torch.dtype
    products: Literal["strict", "TF32"] = "strict"
    chunk_dtype: Optional[torch.dtype] = None


PRECISIONS = {
    "float32": Precision(torch.float32),
    "TF32": Precision(torch.float32, "TF32"),
    "bfloat16 chunks": Precision(torch.float32, chunk_dtype=torch.bfloat16),
    "bfloat16 inputs": Precision(torch.bfloat16),
    "float16 inputs": Precision(torch.float16),
}
"""By name; the first is what the others are compared with. Chunks are those of ``--output-precision bfloat16``."""


class Output(Step):
    """The fused loss with 1 to 32 chunks in every precision, and its three products alone."""

    name = "output"

    def items(self) -> List[Item]:
        return [
            Item(
                f"V={case.vocab_size} J={case.num_experts} d={case.width} N={case.num_tokens}, {name}",
                partial(self._measure, case, name, precision),
            )
            for case in self.setting.scale.output_cases
            for name, precision in PRECISIONS.items()
        ]

    def _measure(self, case: Case, name: str, precision: Precision) -> Figures:
        with float32_products(precision.products):
            x = Inputs(case, device=torch.device(self.setting.device), dtype=precision.dtype)
            sizes: Dict[str, Optional[int]] = {OWN: None}
            sizes.update(
                {
                    str(number): even_chunk_size(case.num_tokens, -(-case.num_tokens // number))
                    for number in NUMBERS_OF_CHUNKS
                    if number <= case.num_tokens
                }
            )
            methods: Dict[str, Method] = {}
            for number, size in sizes.items():
                for kind, method in (("fused", fused), ("floor", floor)):
                    chunks = partial(method, chunk_size=size, chunk_dtype=precision.chunk_dtype)
                    methods[f"{kind} {number}"] = chunks
            times = median_times(x, methods, num_repetitions=self.setting.scale.num_repetitions)
            peaks = {number: self._peak(x, methods[f"fused {number}"]) for number in sizes}
        return {
            **asdict(case),
            "precision": name,
            "own_chunk_size": min(own_chunk_size(x), case.num_tokens),
            "seconds": {number: times[f"fused {number}"] for number in sizes},
            "floor_seconds": {number: times[f"floor {number}"] for number in sizes},
            "peak_bytes": peaks,
        }

    def _peak(self, x: Inputs, method: Method) -> Optional[int]:
        """Memory of the fused loss; on a CPU it is measured by ``benchmark_output_layer``."""
        return allocated_peak(method, x) if x.weight.is_cuda else None

    def tables(self, found: Mapping[str, Figures]) -> str:
        measured = [figures for figures in found.values() if "seconds" in figures]
        exact = {_sizes(figures): figures for figures in measured if figures["precision"] == next(iter(PRECISIONS))}
        parts = [
            "Forward and backward of the loss, medians of "
            f"{self.setting.scale.num_repetitions} interleaved repetitions.",
            as_table(
                ["V", "J", "d", "tokens", "products in", "fused", "products alone", "fused / products"]
                + ["of the time in float32", "memory beyond inputs", "chunks"],
                [_row(figures, exact.get(_sizes(figures))) for figures in measured],
            ),
            "The same by the number of chunks: milliseconds of the fused loss / of its products alone, and memory.",
            as_table(
                ["V", "J", "d", "tokens", "products in", *map(str, NUMBERS_OF_CHUNKS)],
                [
                    [*_sizes(figures), figures["precision"], *(_swept(figures, str(n)) for n in NUMBERS_OF_CHUNKS)]
                    for figures in measured
                ],
            ),
        ]
        return "\n\n".join([*parts, *failed_table(found)])


def _sizes(figures: Mapping[str, Any]) -> Tuple[str, ...]:
    return tuple(f"{figures[name]:,}" for name in ("vocab_size", "num_experts", "width", "num_tokens"))


def _row(figures: Mapping[str, Any], exact: Optional[Mapping[str, Any]]) -> List[object]:
    seconds, floor_seconds, peak = (figures[name][OWN] for name in ("seconds", "floor_seconds", "peak_bytes"))
    return [
        *(*_sizes(figures), figures["precision"], f"{seconds * 1e3:,.2f} ms", f"{floor_seconds * 1e3:,.2f} ms"),
        f"{seconds / floor_seconds:.2f}",
        None if exact is None else f"{seconds / exact['seconds'][OWN]:.2f}",
        None if peak is None else _mebibytes(peak),
        -(-figures["num_tokens"] // figures["own_chunk_size"]),
    ]


def _swept(figures: Mapping[str, Any], number: str) -> Optional[str]:
    if number not in figures["seconds"]:
        return None
    seconds, floor_seconds, peak = (figures[name][number] for name in ("seconds", "floor_seconds", "peak_bytes"))
    times = f"{seconds * 1e3:,.2f} / {floor_seconds * 1e3:,.2f}"
    return times if peak is None else f"{times}, {_mebibytes(peak)}"


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
