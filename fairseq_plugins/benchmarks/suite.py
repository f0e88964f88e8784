"""Suites of systems that benchmarks train and compare."""

from dataclasses import dataclass, replace
from typing import Dict, Sequence

from fairseq_plugins.models.presets import ARCHITECTURES
from fairseq_plugins.recipes import find_recipe
from fairseq_plugins.recipes.recipe import Recipe
from fairseq_plugins.recipes.system import System


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


def in_output_precisions(recipe: Recipe, systems: Sequence[str], precisions: Sequence[str]) -> Recipe:
    """The recipe with these systems alone, each once in every precision of its output layer, which its label names.

    The host's models and the plain loss have no ``--output-precision``: they stay as they are, as all do without
    precisions.

    Args:
        recipe: that has the systems.
        systems: their names in the recipe.
        precisions: values of ``--output-precision``.

    Raises:
        ValueError: if the recipe has no such system.
    """
    variants: Dict[str, System] = {}
    for name in systems:
        system = recipe.system(name)
        if not precisions or not _has_precisions(recipe, name):
            variants[name] = system
            continue
        for precision in precisions:
            variants[f"{name}-{precision}"] = replace(
                system,
                flags={**system.flags, "output-precision": precision},
                label=f"{recipe.label(name)}, output in {precision}",
            )
    return replace(recipe, systems=variants)


def _has_precisions(recipe: Recipe, system: str) -> bool:
    model = recipe.settings(system)
    return model["arch"] in ARCHITECTURES and model.get("output_loss") != "plain"
