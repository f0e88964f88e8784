"""Mogrifier LSTMs of Melis, Kocisky & Blunsom 2020.

For Penn Treebank the paper gives the number of parameters, 24M, but neither widths nor epochs nor clipping: these are
ours. With a tied embedding and two layers of 912, there are 24.0M parameters. Its optimiser is RMSProp, which Adam
without a first moment is, but for the correction of the second moment's start. Its average of the weights is left out:
``--optimizer nt_asgd`` averages SGD alone.
"""

from typing import Dict

from fairseq_plugins.models.presets.language_model_training import SMALL, STREAMS
from fairseq_plugins.models.presets.preset import Preset

_MOGRIFIER = dict(rnn_cell="mogrifier", mogrifier_rounds=5, output_layer="tied", dropout_masks="locked")
_SMALL_NETWORK = dict(
    _MOGRIFIER,
    embed_dim=256,
    hidden_sizes="512 256",
    mogrifier_rank=32,
    dropout_embedding=0.05,
    dropout_input=0.2,
    dropout_hidden=0.15,
    dropout_recurrent=0.15,
    dropout_output=0.2,
)
_PTB = dict(
    _MOGRIFIER,
    embed_dim=912,
    hidden_sizes="912 912",
    mogrifier_rank=84,
    dropout_input=0.729,
    dropout_hidden=0.291,
    dropout_recurrent=0.387,
    dropout_output=0.716,
)
_PTB_TRAINING = {
    **STREAMS,
    "batch-size": 64,
    "optimizer": "l2_adam",
    "adam-betas": "(0.0, 0.999)",
    "lr": 0.0023,
    "weight-decay": 2.5e-4,
    "max-epoch": 300,
    "seed": 1,
}

ARCHITECTURES: Dict[str, Preset] = {
    "mogrifier_lm": Preset(_SMALL_NETWORK, SMALL),
    "mogrifier_lm_ptb": Preset(_PTB, _PTB_TRAINING),
}
"""Values of ``--arch`` and their presets."""
