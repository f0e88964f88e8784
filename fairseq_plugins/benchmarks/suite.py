"""Suites of systems that benchmarks train and compare."""

from dataclasses import dataclass
from typing import Sequence

from fairseq_plugins.recipes import find_recipe
from fairseq_plugins.recipes.recipe import Recipe


@dataclass(frozen=True)
class Suite:
    """Systems of a recipe that are compared; the first is the reference of the ratios.

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
