"""Recipes: the trainings of papers and experiments, as tables of systems.

``python -m fairseq_plugins.cli.train RECIPE SYSTEM DATA --save-dir DIR`` trains one; ``scripts/recipes`` has an entry
for each recipe.
"""

from typing import Dict

from fairseq_plugins.recipes import (
    demo,
    drill,
    fpnn,
    gigaword,
    headlines,
    iog,
    iwslt16,
    joined_pairs,
    mmlstm,
    multi30k,
    presets,
    reduced,
    reduced_base_models,
    reduced_tricks,
    reduced_wt2,
    speed,
    wmt14,
    wsj,
)
from fairseq_plugins.recipes.recipe import Recipe, training_arguments
from fairseq_plugins.recipes.system import System

RECIPES: Dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        presets.RECIPE,
        *(reduced.RECIPE, reduced_base_models.RECIPE, reduced_tricks.RECIPE, reduced_wt2.RECIPE, iog.PTB, iog.WT2),
        *(fpnn.PTB, fpnn.TEXT8_WORDS, fpnn.TEXT8_CHARACTERS),
        *(drill.PTB, drill.WT2, mmlstm.PTB, mmlstm.WT2, mmlstm.WT103),
        *(multi30k.RECURRENT, multi30k.TRANSFORMER, iwslt16.RECIPE, wmt14.MAJOR_MINOR, wmt14.TRANSFORMER),
        *(joined_pairs.MULTI30K, joined_pairs.TRANSFORMER, joined_pairs.IWSLT14, joined_pairs.TATOEBA),
        *(wsj.WSJ, wsj.SAMPLE),
        *(headlines.AGNEWS, headlines.REUTERS, gigaword.RECIPE, demo.LANGUAGE_MODELS, demo.TRANSLATORS),
        *(speed.PTB, speed.WT2, speed.LABELS, speed.MAJOR_MINOR, speed.WIKITEXT103, speed.FPNN, speed.HOST),
        *speed.PRESETS.values(),
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
