"""Matrix products of recurrent highway networks alone, at their own shapes and in their order.

Shapes: T time steps, B batch rows, D width.
"""

from dataclasses import dataclass
from typing import Dict, List, Sequence

import torch
from torch import Tensor
from torch.utils.benchmark import Timer

from fairseq_plugins.ops.matmul import matmul
from fairseq_plugins.recipes.recipe import Recipe

MIN_SECONDS = 5.0
"""That the products of a system are repeated for."""


@dataclass(frozen=True)
class HighwayProducts:
    """The products with the recurrent matrices of one layer in one window, forward and backward.

    Attributes:
        num_rows: B.
        num_steps: T.
        width: D.
        depth: micro-layers, each with a matrix (2 D, D).
    """

    num_rows: int
    num_steps: int
    width: int
    depth: int

    def operands(self, device: str) -> Dict[str, List[Tensor]]:
        """Random matrices, states (T * B, D) and gradients (T * B, 2 D), one of each a micro-layer."""
        num_places = self.num_steps * self.num_rows
        shapes = {
            "matrices": (2 * self.width, self.width),
            "states": (num_places, self.width),
            "gradients": (num_places, 2 * self.width),
        }
        return {name: [torch.randn(shape, device=device) for _ in range(self.depth)] for name, shape in shapes.items()}

    def run(self, operands: Dict[str, List[Tensor]]) -> None:
        """Those of a window: step by step, as each waits for the one before, but for the gradients of the matrices."""
        matrices, states, gradients = (operands[name] for name in ("matrices", "states", "gradients"))
        for t in range(self.num_steps):
            rows = slice(t * self.num_rows, (t + 1) * self.num_rows)
            for matrix, state in zip(matrices, states):
                matmul(state[rows], matrix.t())
        for t in reversed(range(self.num_steps)):
            rows = slice(t * self.num_rows, (t + 1) * self.num_rows)
            for matrix, gradient in zip(matrices, gradients):
                matmul(gradient[rows], matrix)
        for state, gradient in zip(states, gradients):
            matmul(gradient.t(), state)

    def words_per_second(self, device: str) -> float:
        """Words that a second of these products would train on."""
        names = {"products": self, "operands": self.operands(device)}
        timer = Timer("products.run(operands)", globals=names, num_threads=torch.get_num_threads())
        return self.num_rows * self.num_steps / timer.blocked_autorange(min_run_time=MIN_SECONDS).median


def speed_of_highway_products(recipe: Recipe, systems: Sequence[str], *, device: str) -> Dict[str, float]:
    """Words per second of the products of each system with one recurrent highway layer, by its label.

    Args:
        recipe: that has the systems.
        systems: their names in the recipe; what has another cell or more layers is left out.
        device: "cpu" or "cuda".
    """
    found = {}
    for system in systems:
        settings = recipe.settings(system)
        if settings.get("rnn_cell") != "rhn" or not str(settings["hidden_sizes"]).isdecimal():
            continue
        products = HighwayProducts(
            num_rows=int(settings["batch_size"]),
            num_steps=int(settings["tokens_per_sample"]),
            width=int(settings["hidden_sizes"]),
            depth=int(settings["recurrence_depth"]),
        )
        found[recipe.label(system)] = products.words_per_second(device)
    return found
