"""Whether a device multiplies matrices in bfloat16, and faster than in float32."""

import re
from functools import lru_cache
from pathlib import Path

import torch
from torch.utils.benchmark import Timer

from fairseq_plugins.ops.matmul import matmul

CPU_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
"""Of /proc/cpuinfo: x86 with vectors, x86 with tiles, Arm."""
NUM_ROWS, WIDTH, VOCAB_SIZE = 512, 256, 4096
"""Of the products that are timed: rows of a small batch, and a small model's output matrix."""
SMALLEST_GAIN = 1.2
"""Below it, the time of float32 over that of bfloat16 is not worth the rounding."""


@lru_cache(maxsize=None)
def has_native_bfloat16(device: torch.device) -> bool:
    """Whether the processor has instructions for products in bfloat16; False where it does not tell."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    try:
        described = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", described, flags=re.MULTILINE)
    return flags is not None and not CPU_FLAGS.isdisjoint(flags.group(1).split())


@lru_cache(maxsize=None)
def bfloat16_gain(device: torch.device) -> float:
    """Time of an output layer's products in float32 over that in bfloat16, measured in a fraction of a second."""
    rows, matrix = torch.ones(NUM_ROWS, WIDTH, device=device), torch.ones(VOCAB_SIZE, WIDTH, device=device)
    times = []
    for dtype in (torch.float32, torch.bfloat16):
        operands = {"matmul": matmul, "rows": rows.to(dtype), "matrix": matrix.to(dtype)}
        timer = Timer(
            "scores = matmul(rows, matrix.t()); matmul(scores, matrix); matmul(scores.t(), rows)",
            globals=operands,
            num_threads=torch.get_num_threads(),
        )
        with torch.autocast(device.type, enabled=False):
            timer.timeit(2)
            times.append(min(timer.timeit(2).median for _ in range(3)))
    return times[0] / times[1]


def is_bfloat16_faster(device: torch.device) -> bool:
    """Whether products in bfloat16 are native and pay."""
    return has_native_bfloat16(device) and bfloat16_gain(device) >= SMALLEST_GAIN
