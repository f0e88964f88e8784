"""Base models of Takase et al. 2017 and a Mogrifier LSTM on Penn Treebank, small enough for two CPU cores, and gates.

All have about 4.0M parameters and the training of the recipe ``reduced``: the same windows, updates, clipping and
penalties, at a rate that is constant for six epochs. The published schedules hold a rate for 6 to 20 epochs and anneal
for dozens, of which six epochs would be the start alone. Theirs of 1.0, for a loss that is a sum over 35 steps, is 35
of the mean; 20 is near it. That of recurrent highway networks is 0.2, which is 7 of the mean.
"""

from fairseq_plugins.models.presets.gated import ON_AWD
from fairseq_plugins.models.presets.language_model_training import SMALL
from fairseq_plugins.recipes.recipe import ON_CPUS, Recipe, System
from fairseq_plugins.recipes.reduced import RECIPE as REDUCED

_LSTM = {**SMALL, "embed-dim": 175, "hidden-sizes": "175 175"}
_DROPOUT = {"dropout-embedding": 0.05, "dropout-input": 0.2, "dropout-hidden": 0.15, "dropout-output": 0.2}
_RHN = {"recurrence-depth": 8, "dropout-recurrent": 0.1, **_DROPOUT}
_GATE = {"arch": "gated_lm", "gate-dim": 30}

RECIPE = Recipe(
    name="reduced_base_models",
    title="Base models at a CPU budget, and gates on them, Penn Treebank: the same data, updates and seed for all",
    corpus="bash data-prep/ptb/prepare.sh",
    systems={
        "zaremba": System({"arch": "lstm_lm_zaremba_medium", **_LSTM, **_DROPOUT, "dropout-embedding": 0}),
        "variational": System({"arch": "lstm_lm_variational_medium", **_LSTM, **_DROPOUT, "dropout-recurrent": 0.2}),
        "rhn": System({"arch": "rhn_lm", "embed-dim": 173, "hidden-sizes": "173", **_RHN}),
        "rhn-tied": System({"arch": "rhn_lm_tied", "embed-dim": 268, "hidden-sizes": "268", **_RHN}),
        "mogrifier": System({"arch": "mogrifier_lm", "embed-dim": 267, "hidden-sizes": "267 267"}),
        "awd": REDUCED.systems["tied"],
        "gate": System(_GATE, num_base_models=None),
        "gate-hidden": System({**_GATE, "output-gate": "iog-hidden"}, num_base_models=None),
        "gate-lstm": System({**_GATE, "output-gate": "iog-lstm"}, num_base_models=None),
        "gate-awd": System({**_GATE, **ON_AWD}, num_base_models=None),
    },
    training=ON_CPUS,
    notes="""zaremba, variational: two layers under a softmax with a matrix of its own; rhn, of depth 8, too. rhn-tied,
mogrifier and awd share it with the embedding. Dropout rates are near those of awd, which is tied of the recipe reduced.
gate, gate-hidden, gate-lstm: a gate of width 30 that reads the input word, the hidden state, too, or is recurrent; 0.6M
parameters, for gate-hidden 1.75M more on zaremba. At this width a gate makes its base worse, at the paper's, --gate-dim
300, better (results/iog_reduced). Give a trained model by --base-model CKPT, or an ensemble by --base-model
CKPT:CKPT:CKPT, whose members were trained with different --seed. gate-awd: gate with the clipping and the start that
the published program has for AWD-LSTM, for awd and for mos and doc of the recipe reduced.
An epoch with averaging follows the six of a base model: --finetune-from-model CKPT --averaging immediate
--max-epoch 1.""",
)
