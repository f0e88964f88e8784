"""Matrix products of one softmax alone, at their own shapes.

Shapes: N tokens, C width of the labels, V vocabulary.
"""

from pathlib import Path
from typing import Dict, Sequence

import torch
from fairseq.data import Dictionary
from torch.utils.benchmark import Timer

from fairseq_plugins.benchmarks.output_layer import floor
from fairseq_plugins.benchmarks.output_layer_inputs import Case, Inputs
from fairseq_plugins.recipes.recipe import Recipe

MIN_SECONDS = 5.0
"""That the products of a system are repeated for."""


def words_per_second(case: Case, device: str) -> float:
    """Words that a second of these products would train on: N hidden vectors with V labels, and both gradients."""
    x = Inputs(case, device=torch.device(device), dtype=torch.float32)
    timer = Timer("floor(x)", globals={"floor": floor, "x": x}, num_threads=torch.get_num_threads())
    return case.num_tokens / timer.blocked_autorange(min_run_time=MIN_SECONDS).median


def speed_of_output_products(recipe: Recipe, systems: Sequence[str], *, data: Path, device: str) -> Dict[str, float]:
    """Words per second of the products of each linear network that learns by maximum likelihood, by its label.

    Its cell multiplies no matrix, so that these are all the products of a training.

    Args:
        recipe: that has the systems.
        systems: their names in the recipe; what has another cell, output layer or criterion is left out.
        data: directory that data-prep wrote.
        device: "cpu" or "cuda".
    """
    found = {}
    for system in systems:
        settings = recipe.settings(system)
        is_linear = settings.get("rnn_cell") == "diagonal" and settings.get("transition") == "diagonal"
        if not is_linear or settings.get("output_layer") != "full" or settings["criterion"] == "noise_contrastive":
            continue
        products = Case(
            vocab_size=len(Dictionary.load(str(data / "dict.txt"))),
            num_experts=1,
            width=int(settings["hidden_sizes"]),
            num_tokens=int(settings["batch_size"]) * int(settings["tokens_per_sample"]),
        )
        found[recipe.label(system)] = words_per_second(products, device)
    return found
