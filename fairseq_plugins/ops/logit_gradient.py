"""The gradient of a chunk's loss by its logits.

Shapes: n tokens, J experts, V vocabulary. A row is one expert of one token: n * J rows.
"""

from typing import NamedTuple, Optional

from torch import Tensor


class LogitGradient(NamedTuple):
    """Rows of the gradient, each up to a factor, which costs less where it multiplies what the rows are mapped to.

    Attributes:
        rows: (n * J, V).
        factors: that multiply the rows, (n * J, 1), in float32 or wider, or None where they are one.
    """

    rows: Tensor
    factors: Optional[Tensor] = None

    def multiplied(self) -> Tensor:
        """The gradient itself, (n * J, V), in the place of the rows."""
        return self.rows if self.factors is None else self.rows.mul_(self.factors)
