"""Impulse-response networks (FPNN) and rectifier networks of Pachitariu & Sahani 2013.

The paper gives the networks, their widths, dropout and what is held at a constant length. Length, learning rate, rows,
window and epochs are not published: those of the training here were chosen on the validation text of Penn Treebank.
"""

from typing import Dict

from fairseq_plugins.models.presets.language_model_training import STREAMS
from fairseq_plugins.models.presets.preset import Preset

# one layer between the encoding and the decoding matrix, nothing else; a mask of the decoding side for each prediction
_ONE_LAYER = dict(
    input_matrix="off",
    output_layer="full",
    output_bias="off",
    dropout_masks="standard",
    dropout_output=0.5,
)
_REGULARISED = dict(_ONE_LAYER, column_norm=3.0)
_LINEAR, _RECTIFIER = dict(rnn_cell="diagonal", transition="diagonal"), dict(rnn_cell="rectifier")
_SKIPPING = dict(rnn_cell="smooth-rectifier", word_skip="_")
_SMALL_WIDTH = dict(embed_dim=256, hidden_sizes="256")
_WORDS = dict(embed_dim=512, hidden_sizes="512")
_CHARACTERS = dict(embed_dim=2048, hidden_sizes="2048", dropout_output=0.0)

_TRAINING = {
    **STREAMS,
    "tokens-per-sample": 35,
    "batch-size": 20,
    "optimizer": "nt_asgd",
    "lr": 5,
    "nonmonotone-interval": 5,
    "max-epoch": 60,
    "seed": 1,
}
_SMALL_TRAINING = {**_TRAINING, "max-epoch": 6}

ARCHITECTURES: Dict[str, Preset] = {
    f"{name}{corpus}": Preset({**cell, **network, **width}, training)
    for name, cell in (("fpnn_lm", _LINEAR), ("rectifier_rnn_lm", _RECTIFIER))
    for corpus, network, width, training in (
        ("", _REGULARISED, _SMALL_WIDTH, _SMALL_TRAINING),
        ("_ptb", _REGULARISED, _WORDS, _TRAINING),
    )
}
"""Values of ``--arch`` and their presets."""
