"""Base models of Takase et al. 2017 and a Mogrifier LSTM on Penn Treebank, small enough for two CPU cores, and gates.

All have about 4.0M parameters and the training of the recipe ``reduced``: the same windows, updates, clipping and
penalties, at a rate that is constant for six epochs. The published schedules hold a rate for 6 to 20 epochs and anneal
for dozens, of which six epochs would be the start alone. Theirs of 1.0, for a loss that is a sum over 35 steps, is 35
of the mean; 20 is near it. That of recurrent highway networks is 0.2, which is 7 of the mean.
"""

from typing import Dict, Mapping, Optional

from fairseq_plugins.models.presets import Value
from fairseq_plugins.models.presets.gated import ON_AWD
from fairseq_plugins.models.presets.language_model_training import SMALL
from fairseq_plugins.recipes.recipe import AVERAGED, ON_CPUS, Recipe
from fairseq_plugins.recipes.reduced import RECIPE as REDUCED
from fairseq_plugins.recipes.system import Base, System

_LSTM = {**SMALL, "embed-dim": 175, "hidden-sizes": "175 175"}
_DROPOUT = {"dropout-embedding": 0.05, "dropout-input": 0.2, "dropout-hidden": 0.15, "dropout-output": 0.2}
_RHN = {"recurrence-depth": 8, "dropout-recurrent": 0.1, **_DROPOUT}
_BASES: Dict[str, System] = {
    "zaremba": System({"arch": "lstm_lm_zaremba_medium", **_LSTM, **_DROPOUT, "dropout-embedding": 0}),
    "variational": System({"arch": "lstm_lm_variational_medium", **_LSTM, **_DROPOUT, "dropout-recurrent": 0.2}),
    "rhn": System({"arch": "rhn_lm", "embed-dim": 173, "hidden-sizes": "173", **_RHN}),
    "rhn-tied": System({"arch": "rhn_lm_tied", "embed-dim": 268, "hidden-sizes": "268", **_RHN}),
    "mogrifier": System({"arch": "mogrifier_lm", "embed-dim": 267, "hidden-sizes": "267 267"}),
    "awd": REDUCED.systems["tied"],
    "mos": REDUCED.systems["mos"],
    "doc": REDUCED.systems["doc"],
}


def _gate(base: str, *, num: int = 1, flags: Optional[Mapping[str, Value]] = None) -> System:
    """A gate on ``num`` averaged models of the system ``base``."""
    exceptions = ON_AWD if base in ("awd", "mos", "doc") else {}
    return System(
        {"arch": "gated_lm", **exceptions, **(flags or {})},
        base=Base(system=f"{base}{AVERAGED}", flag="base-model", num=num),
    )


RECIPE = Recipe(
    name="reduced_base_models",
    title="Base models at a CPU budget, and gates on them, Penn Treebank: the same data, updates and seed for all",
    corpus="bash data-prep/ptb/prepare.sh",
    systems={
        **_BASES,
        **{f"{base}+iog": _gate(base) for base in _BASES},
        "zaremba+iog30": _gate("zaremba", flags={"gate-dim": 30}),
        "variational+iog30": _gate("variational", flags={"gate-dim": 30}),
        **{
            f"{base}+{gate}": _gate(base, flags={"output-gate": gate})
            for base in ("zaremba", "rhn")
            for gate in ("iog-hidden", "iog-lstm")
        },
        "zaremba3+iog": _gate("zaremba", num=3),
    },
    training=ON_CPUS,
    averaged_epochs=1,
    notes="""zaremba, variational: two layers under a softmax with a matrix of its own; rhn, of depth 8, too. rhn-tied,
mogrifier and awd share it with the embedding. Dropout rates are near those of awd, which is tied of the recipe reduced,
whose mos and doc are here, too.
BASE+iog: a gate of the paper's width, 300, on the averaged model of the base; iog30: of width 30. iog-hidden reads the
hidden state, too, iog-lstm is recurrent; the paper has both on rhn. zaremba3+iog is one gate on three models:
run_recipe trains them with seeds 1 to 3 for its seed 1, 4 to 6 for its seed 2. Gates on awd, mos and doc have the
clipping and the start that the published program has for AWD-LSTM.""",
)
