"""WikiText-2 with networks small enough for two CPU cores."""

from typing import Dict, Mapping

from fairseq_plugins.models.presets import Value
from fairseq_plugins.recipes.recipe import ON_CPUS, Recipe
from fairseq_plugins.recipes.reduced import RECIPE as REDUCED
from fairseq_plugins.recipes.system import System

_AS_LARGE_AS_TIED: Dict[str, Mapping[str, Value]] = {
    "tied": {},
    "drill4": {"hidden-sizes": "391 391 150"},
    "mos": {"hidden-sizes": "496 496 280"},
    "doc": {"hidden-sizes": "496 496 280"},
}

RECIPE = Recipe(
    name="reduced_wt2",
    title="Language models of WikiText-2 at a CPU budget: the same data, updates, dropout and seed for all",
    corpus="bash data-prep/wikitext-2/prepare.sh",
    systems={name: System({**REDUCED.systems[name].flags, **own}) for name, own in _AS_LARGE_AS_TIED.items()},
    training={**ON_CPUS, "max-epoch": 2},
    averaged_epochs=1,
    notes="""The systems of the recipe reduced. Two epochs and one averaged are about as many updates as its six and one
on Penn Treebank; hidden sizes give all as many parameters with the larger vocabulary. Results: results/wt2_reduced.""",
)
