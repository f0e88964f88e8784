"""Recipes: training runs of papers and experiments, as tables of systems.

``fairseq-plugins train RECIPE SYSTEM DATA --save-dir DIR`` trains a system.
"""

from typing import Dict

from fairseq_plugins.options import UserError
from fairseq_plugins.recipes import language_models, small_language_models, translation
from fairseq_plugins.recipes.recipe import Recipe, System
from fairseq_plugins.recipes.training import training_arguments

RECIPES: Dict[str, Recipe] = {
    recipe.name: recipe
    for module in (language_models, small_language_models, translation)
    for recipe in vars(module).values()
    if isinstance(recipe, Recipe)
}
"""All recipes by name."""


def register_recipe(recipe: Recipe) -> Recipe:
    """Add a recipe, such as one of the user's own, and return it. Raises UserError if the name is taken."""
    if recipe.name in RECIPES:
        raise UserError(f"recipe {recipe.name} is registered twice: give one of them another name")
    RECIPES[recipe.name] = recipe
    return recipe


def find_recipe(name: str) -> Recipe:
    """The recipe of that name. Raises UserError if there is none."""
    if name not in RECIPES:
        raise UserError(f"there is no recipe {name}: choose one of {', '.join(RECIPES)}")
    return RECIPES[name]


__all__ = ["RECIPES", "Recipe", "System", "find_recipe", "register_recipe", "training_arguments"]
