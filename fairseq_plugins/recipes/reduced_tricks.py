"""Partial shuffle and adversarial margins on Penn Treebank with networks small enough for two CPU cores."""

from typing import Dict, Mapping

from fairseq_plugins.models.presets import Value
from fairseq_plugins.recipes.recipe import ON_CPUS, Recipe
from fairseq_plugins.recipes.reduced import RECIPE as REDUCED
from fairseq_plugins.recipes.system import System

_DOC = REDUCED.systems["doc"].flags
_MOGRIFIER = {"rnn-cell": "mogrifier", "mogrifier-rank": 32, "hidden-sizes": "375 375 280", "dropout-recurrent": 0.15}
_MODELS: Dict[str, Mapping[str, Value]] = {
    "awd": REDUCED.systems["tied"].flags,
    "mos": REDUCED.systems["mos"].flags,
    "doc": _DOC,
    "mogrifier-doc": {**_DOC, **_MOGRIFIER},
}
_TRICKS: Dict[str, Mapping[str, Value]] = {
    "": {},
    "+shuffle": {"row-offsets": "random"},
    "+adversarial": {"adversarial-epsilon": 0.005},
}

RECIPE = Recipe(
    name="reduced_tricks",
    title="Partial shuffle and adversarial margins at a CPU budget, Penn Treebank: the same data and updates for all",
    corpus="bash data-prep/ptb/prepare.sh",
    systems={
        f"{model}{trick}": System({**flags, **more})
        for model, flags in _MODELS.items()
        for trick, more in _TRICKS.items()
    },
    training=ON_CPUS,
    averaged_epochs=1,
    notes="""awd, mos, doc: tied, mos and doc of the recipe reduced. mogrifier-doc: doc on Mogrifier LSTMs, as many
parameters. +shuffle: every row of the text begins at another token in each epoch (Press 2019). +adversarial: margins of
0.005 (Wang, Gong & Liu 2019), as published for the main training, without noise on the embedding.""",
)
