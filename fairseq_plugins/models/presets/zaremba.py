"""LSTMs of Zaremba et al. 2014 and variational ones of Gal & Ghahramani 2016.

They are the base models of Takase et al. 2017, in the medium and the large size.
"""

from typing import Dict

from fairseq_plugins.models.presets.language_model_training import SUMMED_STEPS
from fairseq_plugins.models.presets.preset import Preset

_ZAREMBA = dict(rnn_cell="lstm", rnn_biases="one", output_layer="full", init_biases="zero", dropout_masks="standard")
_ZAREMBA_MEDIUM = dict(
    _ZAREMBA,
    embed_dim=650,
    hidden_sizes="650 650",
    init_range=0.05,
    dropout_input=0.5,
    dropout_hidden=0.5,
    dropout_output=0.5,
)
_ZAREMBA_LARGE = dict(
    _ZAREMBA,
    embed_dim=1500,
    hidden_sizes="1500 1500",
    init_range=0.04,
    dropout_input=0.65,
    dropout_hidden=0.65,
    dropout_output=0.65,
)
_VARIATIONAL = dict(rnn_cell="variational", dropout_masks="locked", word_masks="row")
_VARIATIONAL_MEDIUM = dict(
    _ZAREMBA_MEDIUM,
    **_VARIATIONAL,
    dropout_embedding=0.2,
    dropout_recurrent=0.2,
    dropout_input=0.35,
    dropout_hidden=0.35,
    dropout_output=0.35,
)
_VARIATIONAL_LARGE = dict(
    _ZAREMBA_LARGE,
    **_VARIATIONAL,
    dropout_embedding=0.3,
    dropout_recurrent=0.3,
    dropout_input=0.5,
    dropout_hidden=0.5,
    dropout_output=0.5,
)

# the rate is constant first, then multiplied in every epoch; the model after the last epoch is the result
_SGD = {**SUMMED_STEPS, "optimizer": "sgd", "lr": 1.0, "lr-scheduler": "fixed", "seed": 0}
_MEDIUM_TRAINING = {**_SGD, "clip-norm": 5, "max-epoch": 39, "force-anneal": 7, "lr-shrink": 1 / 1.2}
_LARGE_TRAINING = {**_SGD, "clip-norm": 10, "max-epoch": 55, "force-anneal": 15, "lr-shrink": 1 / 1.15}
_VARIATIONAL_MEDIUM_TRAINING = {**_MEDIUM_TRAINING, "weight-decay": 1e-7}
_VARIATIONAL_LARGE_TRAINING = {**_LARGE_TRAINING, "weight-decay": 1e-7, "seed": 2}

ARCHITECTURES: Dict[str, Preset] = {
    "lstm_lm_zaremba_medium": Preset(_ZAREMBA_MEDIUM),
    "lstm_lm_zaremba_medium_ptb": Preset(_ZAREMBA_MEDIUM, _MEDIUM_TRAINING),
    "lstm_lm_zaremba_medium_wt2": Preset(_ZAREMBA_MEDIUM, _MEDIUM_TRAINING),
    "lstm_lm_zaremba_large": Preset(_ZAREMBA_LARGE),
    "lstm_lm_zaremba_large_ptb": Preset(_ZAREMBA_LARGE, _LARGE_TRAINING),
    "lstm_lm_variational_medium": Preset(_VARIATIONAL_MEDIUM),
    "lstm_lm_variational_medium_ptb": Preset(_VARIATIONAL_MEDIUM, _VARIATIONAL_MEDIUM_TRAINING),
    "lstm_lm_variational_medium_wt2": Preset(_VARIATIONAL_MEDIUM, _VARIATIONAL_MEDIUM_TRAINING),
    "lstm_lm_variational_large": Preset(_VARIATIONAL_LARGE),
    "lstm_lm_variational_large_ptb": Preset(_VARIATIONAL_LARGE, _VARIATIONAL_LARGE_TRAINING),
}
"""Values of ``--arch`` and their presets; without a corpus the paper names no training."""
