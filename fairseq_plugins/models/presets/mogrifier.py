"""Mogrifier LSTMs of Melis, Kocisky & Blunsom 2020.

For Penn Treebank the setting is that of the authors' program and its configuration. The loss is summed over the 70
steps of a window, a mean of the rows (``--sentence-avg``); beside that sum stand the L2 penalty of 2.52e-4 and the
clipping at 10, which holds for the gradient of both. Beside a mean over tokens they would be 3.6e-6 and 0.143. RMSProp
is Adam without a first moment, but with the correction of the second, and adds its epsilon before that. Masks of the
input, between the layers and of the output are fresh at every step, that of the state is fixed over a window. The
output layer reads the sum of both layers' outputs, and a row's state is dropped in one window of a hundred.

The width of 912 is the largest that keeps within the paper's 24M parameters: 23,986,480 with 10,000 words. The number
of epochs is ours: the program trains for at most 200,000 updates, about 970 epochs, and averages weights, which is left
out here, because ``--optimizer nt_asgd`` averages SGD alone.
"""

from typing import Dict

from fairseq_plugins.models.presets.language_model_training import SMALL, STREAMS
from fairseq_plugins.models.presets.preset import Preset

_MOGRIFIER = dict(rnn_cell="mogrifier", mogrifier_rounds=5, output_layer="tied")
_SMALL_NETWORK = dict(
    _MOGRIFIER,
    dropout_masks="locked",
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
    dropout_masks="standard",
    embed_dim=912,
    hidden_sizes="912 912",
    mogrifier_rank=84,
    dropout_input=0.729,
    dropout_hidden=0.291,
    dropout_recurrent=0.387,
    dropout_output=0.716,
    dropout_carried_state=0.01,
    output_skip="sum",
)
_PTB_TRAINING = {
    **STREAMS,
    "batch-size": 64,
    "optimizer": "l2_adam",
    "adam-betas": "(0.0, 0.999)",
    "adam-eps-added": "before-correction",
    "lr": 0.0023,
    "sentence-avg": True,
    "l2-regularization": 2.52e-4,
    "clip-norm": 10.0,
    "max-epoch": 300,
    "seed": 1,
}

ARCHITECTURES: Dict[str, Preset] = {
    "mogrifier_lm": Preset(_SMALL_NETWORK, SMALL),
    "mogrifier_lm_ptb": Preset(_PTB, _PTB_TRAINING),
}
"""Values of ``--arch`` and their presets."""
