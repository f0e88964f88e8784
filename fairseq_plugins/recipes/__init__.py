"""Recipes: training runs of papers and experiments, as tables of systems.

``python -m fairseq_plugins.cli.train RECIPE SYSTEM DATA --save-dir DIR`` trains a system. ``scripts/recipes`` has a
script for each recipe.
"""

from typing import Dict

from fairseq_plugins.options import UserError
from fairseq_plugins.recipes import language_models, translation
from fairseq_plugins.recipes.recipe import Recipe, System, training_arguments

RECIPES: Dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        language_models.PRESETS,
        language_models.REDUCED,
        language_models.REDUCED_BASE_MODELS,
        language_models.REDUCED_TRICKS,
        language_models.REDUCED_WT2,
        language_models.IOG_PTB,
        language_models.IOG_WT2,
        language_models.FPNN_PTB,
        language_models.FPNN_TEXT8_WORDS,
        language_models.FPNN_TEXT8_CHARACTERS,
        language_models.DRILL_PTB,
        language_models.DRILL_WT2,
        language_models.MMLSTM_PTB,
        language_models.MMLSTM_WT2,
        language_models.MMLSTM_WT103,
        translation.MULTI30K,
        translation.MULTI30K_TRANSFORMER,
        translation.IWSLT16,
        translation.WMT14_MMLSTM,
        translation.WMT14_TRANSFORMER,
        translation.MULTI30K_JOINED,
        translation.MULTI30K_JOINED_TRANSFORMER,
        translation.IWSLT14_PARTIAL,
        translation.TATOEBA,
        language_models.WSJ,
        language_models.WSJ_SAMPLE,
        translation.AGNEWS,
        translation.REUTERS21578,
        translation.GIGAWORD,
        translation.DEMO_LM,
        translation.DEMO_TRANSLATION,
        language_models.SPEED_PTB,
        language_models.SPEED_WT2,
        language_models.SPEED_LABELS,
        language_models.SPEED_MMLSTM,
        language_models.SPEED_WT103,
        language_models.SPEED_FPNN,
        language_models.SPEED_HOST,
        *language_models.SPEED_PRESETS.values(),
    )
}
"""All recipes by name, in the order in which they are listed."""


def find_recipe(name: str) -> Recipe:
    """The recipe of that name.

    Raises:
        UserError: if there is none.
    """
    if name not in RECIPES:
        raise UserError(f"there is no recipe {name}: choose one of {', '.join(RECIPES)}")
    return RECIPES[name]


__all__ = ["RECIPES", "Recipe", "System", "find_recipe", "training_arguments"]
