"""What a device is."""

from typing import Dict

import torch

from fairseq_plugins.benchmarks.device.setting import Setting
from fairseq_plugins.reports.tables import as_table


def device_facts(setting: Setting) -> Dict[str, str]:
    """The device, its memory and the versions of its libraries, by name."""
    if setting.device == "cpu":
        return {
            "device": "CPU: everything is of toy size, so figures say nothing of speed",
            "threads": str(torch.get_num_threads()),
        }
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "devices": str(torch.cuda.device_count()),
        "memory": f"{properties.total_memory / 2**30:.1f} GiB",
        "compute capability": f"{properties.major}.{properties.minor}",
        "CUDA": str(torch.version.cuda or torch.version.hip),
        "cuDNN": str(torch.backends.cudnn.version()),
    }


def as_markdown(facts: Dict[str, str]) -> str:
    """A table with a row a fact."""
    (first, value), *rest = facts.items()
    return as_table([first, value], rest)
