"""Recurrent highway networks of Zilly et al. 2017 as Takase et al. 2017 train them: variational, of depth 8.

The published transform gates read the state, and their biases start at -2. In the program of Takase et al. they read
the candidate, and their biases start at zero: ``--transform-input candidate --transform-bias 0``. Which of the two the
figures of Takase et al. come from is not known.
"""

from typing import Dict

from fairseq_plugins.models.presets.language_model_training import SMALL, SUMMED_STEPS
from fairseq_plugins.models.presets.preset import Preset

_VARIATIONAL = dict(
    rnn_cell="rhn", transform_input="state", transform_bias=-2.0, dropout_masks="locked", word_masks="row"
)
_SMALL_NETWORK = dict(
    _VARIATIONAL,
    embed_dim=400,
    hidden_sizes="400",
    recurrence_depth=4,
    dropout_embedding=0.05,
    dropout_input=0.2,
    dropout_recurrent=0.1,
    dropout_output=0.2,
)
_NETWORK = dict(
    _VARIATIONAL,
    embed_dim=890,
    hidden_sizes="890",
    recurrence_depth=8,
    init_range=0.04,
    init_biases="zero",
    dropout_embedding=0.25,
    dropout_input=0.75,
    dropout_recurrent=0.25,
    dropout_output=0.75,
)

# the rate is constant for 20 epochs, then multiplied in every epoch; the model after the last epoch is the result
_TRAINING = {
    **SUMMED_STEPS,
    "optimizer": "sgd",
    "lr": 0.2,
    "lr-scheduler": "fixed",
    "force-anneal": 21,
    "lr-shrink": 1 / 1.02,
    "clip-norm": 10,
    "weight-decay": 1e-7,
    "max-epoch": 200,
    "seed": 0,
}
# the published rate, 0.2 of a sum over 35 steps, is 7 of their mean
_SMALL_TRAINING = {**SMALL, "lr": 7}

ARCHITECTURES: Dict[str, Preset] = {
    f"{name}{corpus}": Preset(dict(network, output_layer=output_layer), training)
    for name, output_layer in (("rhn_lm", "full"), ("rhn_lm_tied", "tied"))
    for corpus, network, training in (
        ("", _SMALL_NETWORK, _SMALL_TRAINING),
        ("_ptb", _NETWORK, _TRAINING),
        ("_wt2", _NETWORK, _TRAINING),
    )
}
"""Values of ``--arch`` and their presets."""
