"""Impulse-response networks (FPNN) and rectifier networks of Pachitariu & Sahani 2013.

The paper gives the networks, their widths, dropout and what is held at a constant length. Length, optimiser, learning
rate, rows, window and epochs are not published. The first three were searched on the valid split of Penn Treebank
(results/fpnn); rows and windows, and all of text8's, are first guesses. There is no skipping network for words: it
joins the first letters of words.
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
    dropout_output=0.0,
)
_REGULARISED = dict(_ONE_LAYER, dropout_output=0.5, column_norm=15.0)
_LINEAR = dict(rnn_cell="diagonal", transition="diagonal")
# steps of Adagrad as long as those of the word matrices drive R out of the stable range within two updates
_SLOW_MATRIX = dict(recurrent_scale=0.01)
_RECTIFIER = dict(rnn_cell="rectifier", **_SLOW_MATRIX)
_SMOOTH_RECTIFIER = dict(rnn_cell="smooth-rectifier", rectifier_smoothing=1.0)
_SMALL_WIDTH = dict(embed_dim=256, hidden_sizes="256")
_WORDS = dict(embed_dim=512, hidden_sizes="512")
_CHARACTERS = dict(embed_dim=2048, hidden_sizes="2048")
_SMOOTH_OF_CHARACTERS = dict(_SMOOTH_RECTIFIER, rectifier_smoothing=0.1, **_SLOW_MATRIX)
_SKIP = dict(word_skip="_")

_WORD_STREAMS = {**STREAMS, "tokens-per-sample": 35, "batch-size": 20}
# Adagrad: the word matrices have rows of very unlike frequency, and the logits have no bias
_TRAINING = {
    **_WORD_STREAMS,
    "optimizer": "adagrad",
    "lr": 0.05,
    "lr-scheduler": "fixed",
    "force-anneal": 7,
    "lr-shrink": 0.3,
    "max-epoch": 8,
    "seed": 1,
}
_SMALL_TRAINING = {**_TRAINING, "max-epoch": 6}
_TEXT8 = {"tokens-per-sample": 20, "batch-size": 64, "max-epoch": 10}
_TEXT8_WORDS = {**_TRAINING, **_TEXT8}
# the paper has momentum near 1 and no clipping: with SGD at 0.01 and momentum 0.99 smooth rectifiers do not leave their
# start, and sharper ones diverge
_TEXT8_CHARACTERS = {
    **STREAMS,
    "tokens-per-sample": 100,
    "batch-size": 64,
    "optimizer": "adagrad",
    "lr": 0.01,
    "lr-scheduler": "fixed",
    "clip-norm": 0,
    "max-epoch": 5,
    "seed": 1,
}

ARCHITECTURES: Dict[str, Preset] = {
    "fpnn_lm": Preset({**_LINEAR, **_REGULARISED, **_SMALL_WIDTH}, _SMALL_TRAINING),
    "fpnn_lm_ptb": Preset({**_LINEAR, **_REGULARISED, **_WORDS}, _TRAINING),
    "fpnn_lm_text8_words": Preset({**_LINEAR, **_ONE_LAYER, **_WORDS}, _TEXT8_WORDS),
    "fpnn_lm_text8_chars": Preset(
        {**_LINEAR, **_ONE_LAYER, **_CHARACTERS, "output_hidden_size": 2048}, _TEXT8_CHARACTERS
    ),
    "rectifier_rnn_lm": Preset({**_RECTIFIER, **_REGULARISED, **_SMALL_WIDTH}, _SMALL_TRAINING),
    "rectifier_rnn_lm_ptb": Preset({**_RECTIFIER, **_REGULARISED, **_WORDS}, _TRAINING),
    "rectifier_rnn_lm_text8_words": Preset({**_RECTIFIER, **_ONE_LAYER, **_WORDS}, _TEXT8_WORDS),
    "rectifier_rnn_lm_text8_chars": Preset({**_SMOOTH_OF_CHARACTERS, **_ONE_LAYER, **_CHARACTERS}, _TEXT8_CHARACTERS),
    "skipping_rnn_lm": Preset(
        {**_SMOOTH_RECTIFIER, **_SLOW_MATRIX, **_SKIP, **_ONE_LAYER, **_SMALL_WIDTH}, _SMALL_TRAINING
    ),
    "skipping_rnn_lm_text8_chars": Preset(
        {**_SMOOTH_OF_CHARACTERS, **_SKIP, **_ONE_LAYER, **_CHARACTERS}, _TEXT8_CHARACTERS
    ),
}
"""Values of ``--arch`` and their presets."""
