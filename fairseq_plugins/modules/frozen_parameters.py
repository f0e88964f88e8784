"""Parameters that do not learn."""

from contextlib import contextmanager
from typing import Iterator

from torch import nn


@contextmanager
def every_parameter_learns(model: nn.Module) -> Iterator[None]:
    """Gradients for all parameters in the block, for frozen ones as well."""
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
