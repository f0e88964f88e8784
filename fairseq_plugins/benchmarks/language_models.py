"""Suites of language models whose training is timed; the first model of each is the reference of the ratios."""

from dataclasses import dataclass
from typing import Dict, Sequence

from fairseq_plugins.recipes import find_recipe
from fairseq_plugins.recipes.recipe import Recipe


@dataclass(frozen=True)
class Suite:
    """Systems of a recipe that are compared.

    Attributes:
        recipe_name: of the recipe.
        systems: their names in the recipe; none are all.
    """

    recipe_name: str
    systems: Sequence[str] = ()

    @property
    def recipe(self) -> Recipe:
        """The recipe."""
        return find_recipe(self.recipe_name)

    @property
    def system_names(self) -> Sequence[str]:
        """Names of the systems in the recipe."""
        return self.systems or list(self.recipe.systems)


SUITES: Dict[str, Suite] = {
    **{name: Suite(f"speed_{name}") for name in ("ptb", "wt2", "labels", "mmlstm", "wt103", "host")},
    "reduced": Suite("reduced", ["tied", "mos", "doc"]),
    "labels-reduced": Suite(
        "reduced", ["tied", "full", "bilinear", "dual", "drill1", "drill2", "drill3", "drill4", "standard"]
    ),
    "mmlstm-reduced": Suite("reduced", ["tied", "9:1", "7:3", "5:5", "mos", "mmlstm-mos", "mmlstm-doc"]),
}
"""By name. All models of a suite have the same data, and the same rows and window where their recipe says so."""
