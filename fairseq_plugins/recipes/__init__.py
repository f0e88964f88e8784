"""Recipes: the trainings of papers and experiments, as tables of systems.

``python -m fairseq_plugins.cli.train RECIPE SYSTEM DATA --save-dir DIR`` trains one; ``scripts/recipes`` has an entry
for each recipe.
"""

from typing import Dict

from fairseq_plugins.recipes import multi30k, reduced
from fairseq_plugins.recipes.recipe import Recipe, System, training_arguments

RECIPES: Dict[str, Recipe] = {
    recipe.name: recipe for recipe in (reduced.RECIPE, multi30k.RECURRENT, multi30k.TRANSFORMER)
}
"""All recipes by name."""


def find_recipe(name: str) -> Recipe:
    """The recipe of that name.

    Raises:
        ValueError: if there is none.
    """
    if name not in RECIPES:
        raise ValueError(f"there is no recipe {name}: choose one of {', '.join(RECIPES)}")
    return RECIPES[name]


__all__ = ["RECIPES", "Recipe", "System", "find_recipe", "training_arguments"]
