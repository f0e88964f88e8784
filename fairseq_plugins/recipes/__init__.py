"""Recipes: the trainings of papers and experiments, as tables of systems.

``python -m fairseq_plugins.cli.train RECIPE SYSTEM DATA --save-dir DIR`` trains one; ``scripts/recipes`` has an entry
for each recipe.
"""

from typing import Dict

from fairseq_plugins.recipes import language_models, translation
from fairseq_plugins.recipes.recipe import Recipe, System, training_arguments

RECIPES: Dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        language_models.PRESETS_RECIPE,
        *(
            language_models.REDUCED,
            language_models.REDUCED_BASE_MODELS,
            language_models.REDUCED_TRICKS,
            language_models.REDUCED_WT2,
            language_models.IOG_PTB,
            language_models.WT2,
        ),
        *(language_models.PTB, language_models.TEXT8_WORDS, language_models.TEXT8_CHARACTERS),
        *(
            language_models.DRILL_PTB,
            language_models.DRILL_WT2,
            language_models.MMLSTM_PTB,
            language_models.MMLSTM_WT2,
            language_models.WT103,
        ),
        *(
            translation.RECURRENT,
            translation.MULTI30K_TRANSFORMER,
            translation.IWSLT16,
            translation.MAJOR_MINOR,
            translation.WMT14_TRANSFORMER,
        ),
        *(translation.MULTI30K, translation.TRANSFORMER, translation.IWSLT14, translation.TATOEBA),
        *(language_models.WSJ, language_models.SAMPLE),
        *(
            translation.AGNEWS,
            translation.REUTERS,
            translation.GIGAWORD,
            translation.LANGUAGE_MODELS,
            translation.TRANSLATORS,
        ),
        *(
            language_models.SPEED_PTB,
            language_models.SPEED_WT2,
            language_models.LABELS,
            language_models.MAJOR_MINOR,
            language_models.WIKITEXT103,
            language_models.FPNN,
            language_models.HOST,
        ),
        *language_models.PRESETS.values(),
    )
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
