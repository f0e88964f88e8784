"""Presets of the language models, one section for the architectures of a paper.

Each dictionary maps values of ``--arch`` to their presets.
"""

from typing import Dict

from fairseq_plugins.models.presets.preset import Preset, Value
from fairseq_plugins.models.presets.translation import TRANSFORMER_LAYERS, TRANSFORMER_TYING

LANGUAGE_MODELS: Dict[str, Preset] = {}
"""The recurrent language models. Each section below adds the models of a paper."""

STREAMS = {
    "task": "stateful_lm",
    "criterion": "regularized_cross_entropy",
    "tokens-per-sample": 70,
    "clip-norm": 0.25,
    "batch-size-valid": 10,
    "distributed-world-size": 1,
}
"""Flags of ``fairseq-train`` for every run on contiguous streams."""

SUMMED_STEPS = {**STREAMS, "tokens-per-sample": 35, "batch-size": 20, "sentence-avg": True}
"""Zaremba et al. 2014 and their followers: the loss is the sum over the steps of a window, averaged over rows."""

AVERAGED = {
    **STREAMS,
    "optimizer": "nt_asgd",
    "window-lengths": "random",
    "activation-regularization": 2.0,
    "temporal-activation-regularization": 1.0,
    "weight-decay": 1.2e-6,
    "nonmonotone-interval": 5,
}
"""Merity et al. 2018. Learning rate, rows and epochs differ by corpus."""

SMALL = {**AVERAGED, "lr": 20, "batch-size": 20, "max-epoch": 6}
"""The small architectures: Penn Treebank takes an hour on two CPU cores."""


# AWD-LSTM with a single softmax: full, tied, bilinear, dual nonlinear or DRILL.


SMALL_NETWORK = dict(
    rnn_cell="lstm",
    embed_dim=256,
    dropout_embedding=0.05,
    dropout_input=0.2,
    dropout_hidden=0.15,
    dropout_output=0.2,
    dropout_weight=0.2,
)
SMALL_TIED = dict(SMALL_NETWORK, hidden_sizes="512 512 256", output_layer="tied")
# These layers compare the last recurrent layer with the word embedding, so both have one width.
_COMPARING_LAYERS: Dict[str, Dict[str, Value]] = dict.fromkeys(("tied", "drill"), {"hidden_sizes": "512 512 256"})
_MIXTURES: Dict[str, Dict[str, Value]] = dict.fromkeys(("mos", "doc"), {"latent_dropout": 0.2})
_OTHER_LAYERS = {**_COMPARING_LAYERS, **_MIXTURES}

# Merity et al. 2018. Rows and dropout_hidden are the published program's where they differ from the paper.
AWD = dict(rnn_cell="lstm", dropout_embedding=0.1, dropout_output=0.4, dropout_weight=0.5)
AWD_PTB = dict(
    AWD, embed_dim=400, hidden_sizes="1150 1150 400", output_layer="tied", dropout_input=0.4, dropout_hidden=0.25
)
AWD_WT2 = dict(AWD_PTB, dropout_input=0.65, dropout_hidden=0.2)
AWD_PTB_TRAINING = {**AVERAGED, "lr": 30, "batch-size": 20, "max-epoch": 500, "seed": 141}
AWD_WT2_TRAINING = {**AVERAGED, "lr": 30, "batch-size": 80, "max-epoch": 750, "seed": 1882}

# Pappas & Henderson 2019. Their baselines (table 4) have the same recurrent layers, and full is trained like AWD-LSTM.
_BILINEAR = dict(output_layer="bilinear")
_DUAL = dict(output_layer="dual")
_DRILL = dict(output_layer="drill", label_depth=4, label_dropout=0.6)
_FULL = dict(hidden_sizes="1150 1150 1150", output_layer="full")
_LABELS_PTB_TRAINING = {**AWD_PTB_TRAINING, "max-epoch": 1000, "seed": 28}
_LABELS_WT2_TRAINING = {**AWD_WT2_TRAINING, "max-epoch": 2000}

# The published programs limit the windows of AWD-LSTM in fine-tuning only.
_FINE_TUNING = {"max-window": 80}

LANGUAGE_MODELS |= {
    "lstm_lm_awd": Preset(SMALL_TIED, SMALL, output_layers=_MIXTURES),
    "lstm_lm_full": Preset(
        dict(SMALL_TIED, hidden_sizes="512 512 512", output_layer="full"), SMALL, output_layers=_OTHER_LAYERS
    ),
    "lstm_lm_bilinear": Preset(dict(SMALL_TIED, **_BILINEAR), SMALL, output_layers=_MIXTURES),
    "lstm_lm_dual": Preset(dict(SMALL_TIED, **_DUAL), SMALL, output_layers=_MIXTURES),
    "lstm_lm_drill": Preset(dict(SMALL_TIED, output_layer="drill", label_depth=2), SMALL, output_layers=_MIXTURES),
    "lstm_lm_awd_ptb": Preset(AWD_PTB, AWD_PTB_TRAINING, _FINE_TUNING),
    "lstm_lm_awd_wt2": Preset(AWD_WT2, AWD_WT2_TRAINING, _FINE_TUNING),
    "lstm_lm_full_ptb": Preset(dict(AWD_PTB, **_FULL), AWD_PTB_TRAINING, _FINE_TUNING),
    "lstm_lm_full_wt2": Preset(dict(AWD_WT2, **_FULL), AWD_WT2_TRAINING, _FINE_TUNING),
    "lstm_lm_bilinear_ptb": Preset(dict(AWD_PTB, **_BILINEAR), _LABELS_PTB_TRAINING, _FINE_TUNING),
    "lstm_lm_bilinear_wt2": Preset(dict(AWD_WT2, **_BILINEAR), _LABELS_WT2_TRAINING, _FINE_TUNING),
    "lstm_lm_dual_ptb": Preset(dict(AWD_PTB, **_DUAL), _LABELS_PTB_TRAINING, _FINE_TUNING),
    "lstm_lm_dual_wt2": Preset(dict(AWD_WT2, **_DUAL), _LABELS_WT2_TRAINING, _FINE_TUNING),
    "lstm_lm_drill_ptb": Preset(dict(AWD_PTB, **_DRILL), _LABELS_PTB_TRAINING, _FINE_TUNING),
    "lstm_lm_drill_wt2": Preset(
        dict(AWD_WT2, **_DRILL, label_activation="relu", label_mask="standard"), _LABELS_WT2_TRAINING, _FINE_TUNING
    ),
}


# AWD-LSTM with a mixture of softmaxes: MoS and DOC.


SMALL_MIXTURE = dict(SMALL_NETWORK, **_MIXTURES["mos"], hidden_sizes="512 512 384")

# Yang et al. 2018; Takase et al. 2018
_PUBLISHED_MIXTURES: Dict[str, Dict[str, Value]] = {
    "mos": dict(experts_per_layer="0 0 0 15", latent_dropout=0.29),
    "doc": dict(experts_per_layer="0 0 5 15", latent_dropout=0.6),
}
# Yang et al. 2018. On WikiText-2 the programs of MoS and DOC split the rows of an update into three micro-batches.
MOS_PTB = dict(
    AWD,
    embed_dim=280,
    hidden_sizes="960 960 620",
    output_layer="mos",
    **_PUBLISHED_MIXTURES["mos"],
    dropout_input=0.4,
    dropout_hidden=0.225,
)
MOS_WT2 = dict(MOS_PTB, embed_dim=300, hidden_sizes="1150 1150 650", dropout_input=0.55, dropout_hidden=0.2)
MOS_PTB_TRAINING = {**AVERAGED, "lr": 20, "batch-size": 12, "max-epoch": 1000, "seed": 28, "max-window": 110}
MOS_WT2_TRAINING = {
    **AVERAGED,
    "lr": 15,
    "batch-size": 15,
    "row-groups": 3,
    "max-epoch": 1000,
    "seed": 1882,
    "max-window": 90,
}
MOS_PTB_FINE_TUNING = {"lr": 25}
MOS_WT2_FINE_TUNING = {"lr": 20}

# Takase et al. 2018. On WikiText-2 the input dropout is the program's, 0.55, and not the table's, 0.65.
_DOC = dict(output_layer="doc", **_PUBLISHED_MIXTURES["doc"])
_BALANCE = {"balance": 0.001}
_DOC_TRAINING = {**_BALANCE, "max-epoch": 500, "nonmonotone-interval": 60}

LANGUAGE_MODELS |= {
    "lstm_lm_mos": Preset(dict(SMALL_MIXTURE, output_layer="mos"), SMALL, output_layers=_OTHER_LAYERS),
    "lstm_lm_doc": Preset(dict(SMALL_MIXTURE, output_layer="doc"), {**SMALL, **_BALANCE}, output_layers=_OTHER_LAYERS),
    "lstm_lm_mos_ptb": Preset(MOS_PTB, MOS_PTB_TRAINING, MOS_PTB_FINE_TUNING, output_layers=_PUBLISHED_MIXTURES),
    "lstm_lm_mos_wt2": Preset(MOS_WT2, MOS_WT2_TRAINING, MOS_WT2_FINE_TUNING, output_layers=_PUBLISHED_MIXTURES),
    "lstm_lm_doc_ptb": Preset(
        dict(MOS_PTB, **_DOC), {**MOS_PTB_TRAINING, **_DOC_TRAINING}, {}, output_layers=_PUBLISHED_MIXTURES
    ),
    "lstm_lm_doc_wt2": Preset(
        dict(MOS_WT2, **_DOC), {**MOS_WT2_TRAINING, **_DOC_TRAINING}, {}, output_layers=_PUBLISHED_MIXTURES
    ),
}


# Major-Minor LSTM language models of Shuang et al. 2020.
#
# The ratio study at 9:1 is table IX, MoS table IV and WikiText-103 table VI. For WikiText-103 the paper does not give
# the softmax (here exact), clipping (as in AWD-LSTM), windows (fixed) and penalties (none). For MoS it does not give
# rows, seeds, micro-batches of rows and fine-tuning (here all as in Yang et al. 2018).


_MAJOR_MINOR = dict(rnn_cell="mmlstm", major_proportions="0.9")
_MM_PTB = dict(AWD_PTB, **_MAJOR_MINOR, hidden_sizes="1240 1240 400")
_MM_WT2 = dict(AWD_WT2, **_MAJOR_MINOR, hidden_sizes="1230 1230 400")
_MM_MOS = dict(rnn_cell="mmlstm", major_proportions="0.9 0.9 0.6")
_MM_MOS_PTB = dict(MOS_PTB, **_MM_MOS, hidden_sizes="1080 1080 620", dropout_input=0.5, dropout_hidden=0.25)
_MM_MOS_WT2 = dict(MOS_WT2, **_MM_MOS, hidden_sizes="1200 1200 650")
_MM_WT103 = dict(
    _MAJOR_MINOR,
    embed_dim=256,
    hidden_sizes="1100 256",
    output_layer="tied",
    dropout_hidden=0.1,
    dropout_output=0.1,
    dropout_weight=0.15,
)
_MM_MOS_TRAINING = {"nonmonotone-interval": 10, "max-epoch": 500}
_MM_WT103_TRAINING = {**STREAMS, "optimizer": "adam", "lr": 0.001, "batch-size": 128, "max-epoch": 50}

LANGUAGE_MODELS |= {
    "mmlstm_lm": Preset(dict(SMALL_TIED, **_MAJOR_MINOR), SMALL, output_layers=_MIXTURES),
    "mmlstm_lm_mos": Preset(dict(SMALL_MIXTURE, **_MM_MOS, output_layer="mos"), SMALL, output_layers=_OTHER_LAYERS),
    "mmlstm_lm_ptb": Preset(_MM_PTB, {**AWD_PTB_TRAINING, "max-epoch": 300}),
    "mmlstm_lm_wt2": Preset(_MM_WT2, {**AWD_WT2_TRAINING, "max-epoch": 300}),
    "mmlstm_lm_wt103": Preset(_MM_WT103, _MM_WT103_TRAINING),
    "mmlstm_lm_mos_ptb": Preset(_MM_MOS_PTB, {**MOS_PTB_TRAINING, **_MM_MOS_TRAINING}, MOS_PTB_FINE_TUNING),
    "mmlstm_lm_mos_wt2": Preset(_MM_MOS_WT2, {**MOS_WT2_TRAINING, **_MM_MOS_TRAINING, "lr": 20}, MOS_WT2_FINE_TUNING),
}


# Mogrifier LSTMs of Melis, Kocisky & Blunsom 2020.
#
# The setting for Penn Treebank is from the authors' program and its configuration. The loss is the sum over the 70
# steps of a window, averaged over rows (``--sentence-avg``). The L2 penalty of 2.52e-4 and the clipping of both
# gradients at 10 belong to this sum. With a mean over tokens they would be 3.6e-6 and 0.143. Their RMSProp is Adam
# without a first moment, which adds epsilon before it corrects the second. Dropout masks of input, output and between
# layers change at every step, the state's is fixed over a window. The output layer reads the sum of both layers'
# outputs. A row's state is dropped in one window of a hundred.
#
# The width of 912 is the largest within the paper's 24M parameters: 23,986,480 with 10,000 words. The number of epochs
# is ours. The program trains for at most 200,000 updates, about 970 epochs, and averages weights. That is left out,
# because ``--optimizer nt_asgd`` averages SGD only.


_MOGRIFIER = dict(rnn_cell="mogrifier", mogrifier_rounds=5, output_layer="tied")
_MOGRIFIER_SMALL = dict(
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
_MOGRIFIER_PTB = dict(
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
_MOGRIFIER_PTB_TRAINING = {
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

LANGUAGE_MODELS |= {
    "mogrifier_lm": Preset(_MOGRIFIER_SMALL, SMALL),
    "mogrifier_lm_ptb": Preset(_MOGRIFIER_PTB, _MOGRIFIER_PTB_TRAINING),
}


# Recurrent highway networks of Zilly et al. 2017 as Takase et al. 2017 train them: variational, of depth 8.
#
# The published transform gates read the state, and their biases start at -2. In the program of Takase et al. they read
# the candidate, and their biases start at zero: ``--transform-input candidate --transform-bias 0``. It is not known
# which of the two gave the figures of Takase et al.


_RHN = dict(rnn_cell="rhn", transform_input="state", transform_bias=-2.0, dropout_masks="locked", word_masks="row")
_RHN_SMALL = dict(
    _RHN,
    embed_dim=400,
    hidden_sizes="400",
    recurrence_depth=4,
    dropout_embedding=0.05,
    dropout_input=0.2,
    dropout_recurrent=0.1,
    dropout_output=0.2,
)
_RHN_PAPER = dict(
    _RHN,
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

# The rate is constant for 20 epochs and decays in every later one. The result is the model after the last epoch.
_RHN_TRAINING = {
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
# The published rate of 0.2 for a sum over 35 steps is 7 for their mean.
_RHN_SMALL_TRAINING = {**SMALL, "lr": 7}

LANGUAGE_MODELS |= {
    f"{name}{corpus}": Preset(dict(network, output_layer=output_layer), training)
    for name, output_layer in (("rhn_lm", "full"), ("rhn_lm_tied", "tied"))
    for corpus, network, training in (
        ("", _RHN_SMALL, _RHN_SMALL_TRAINING),
        ("_ptb", _RHN_PAPER, _RHN_TRAINING),
        ("_wt2", _RHN_PAPER, _RHN_TRAINING),
    )
}


# LSTMs of Zaremba et al. 2014 and variational ones of Gal & Ghahramani 2016.
#
# They are the base models of Takase et al. 2017, in the medium and the large size.


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

# The rate is constant at first and decays in every later epoch. The result is the model after the last epoch.
_SGD = {**SUMMED_STEPS, "optimizer": "sgd", "lr": 1.0, "lr-scheduler": "fixed", "seed": 0}
_MEDIUM_TRAINING = {**_SGD, "clip-norm": 5, "max-epoch": 39, "force-anneal": 7, "lr-shrink": 1 / 1.2}
_LARGE_TRAINING = {**_SGD, "clip-norm": 10, "max-epoch": 55, "force-anneal": 15, "lr-shrink": 1 / 1.15}
_VARIATIONAL_MEDIUM_TRAINING = {**_MEDIUM_TRAINING, "weight-decay": 1e-7}
_VARIATIONAL_LARGE_TRAINING = {**_LARGE_TRAINING, "weight-decay": 1e-7, "seed": 2}

# Names without a corpus have no training flags, because the papers name none.
LANGUAGE_MODELS |= {
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


# Impulse-response networks (FPNN) and rectifier networks of Pachitariu & Sahani 2013.
#
# The paper gives the networks, their widths, dropout, and which columns have a constant norm. The norm, optimiser,
# learning rate, rows, window and epochs are not published. The first three were searched on the valid split of Penn
# Treebank (results/fpnn). Rows and windows, and everything for text8, are first guesses. There is no skipping network
# for words: it connects the first letters of words.


# One layer between the encoding and the decoding matrix, nothing else, and a fresh mask for each prediction.
_ONE_LAYER = dict(
    input_matrix="off",
    output_layer="full",
    output_bias="off",
    dropout_masks="standard",
    dropout_output=0.0,
)
_REGULARISED = dict(_ONE_LAYER, dropout_output=0.5, column_norm=15.0)
_LINEAR = dict(rnn_cell="diagonal", transition="diagonal")
# With the step size of the word matrices Adagrad drives R out of the stable range within two updates.
_SLOW_MATRIX = dict(recurrent_scale=0.01)
_RECTIFIER = dict(rnn_cell="rectifier", **_SLOW_MATRIX)
_SMOOTH_RECTIFIER = dict(rnn_cell="smooth-rectifier", rectifier_smoothing=1.0)
_SMALL_WIDTH = dict(embed_dim=256, hidden_sizes="256")
_WORDS = dict(embed_dim=512, hidden_sizes="512")
_CHARACTERS = dict(embed_dim=2048, hidden_sizes="2048")
_SMOOTH_OF_CHARACTERS = dict(_SMOOTH_RECTIFIER, rectifier_smoothing=0.1, **_SLOW_MATRIX)
_SKIP = dict(word_skip="_")

# Adagrad, because the frequencies of the word matrices' rows differ widely and the logits have no bias.
_FPNN_TRAINING = {
    **STREAMS,
    "tokens-per-sample": 35,
    "batch-size": 20,
    "optimizer": "adagrad",
    "lr": 0.05,
    "lr-scheduler": "fixed",
    "force-anneal": 7,
    "lr-shrink": 0.3,
    "max-epoch": 8,
    "seed": 1,
}
_FPNN_SMALL_TRAINING = {**_FPNN_TRAINING, "max-epoch": 6}
_TEXT8 = {"tokens-per-sample": 20, "batch-size": 64, "max-epoch": 10}
_TEXT8_WORDS = {**_FPNN_TRAINING, **_TEXT8}
# The paper has momentum near 1 and no clipping. With SGD at 0.01 and momentum 0.99 smooth rectifiers do not leave their
# initial values here, and sharper ones diverge.
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

LANGUAGE_MODELS |= {
    "fpnn_lm": Preset({**_LINEAR, **_REGULARISED, **_SMALL_WIDTH}, _FPNN_SMALL_TRAINING),
    "fpnn_lm_ptb": Preset({**_LINEAR, **_REGULARISED, **_WORDS}, _FPNN_TRAINING),
    "fpnn_lm_text8_words": Preset({**_LINEAR, **_ONE_LAYER, **_WORDS}, _TEXT8_WORDS),
    "fpnn_lm_text8_chars": Preset(
        {**_LINEAR, **_ONE_LAYER, **_CHARACTERS, "output_hidden_size": 2048}, _TEXT8_CHARACTERS
    ),
    "rectifier_rnn_lm": Preset({**_RECTIFIER, **_REGULARISED, **_SMALL_WIDTH}, _FPNN_SMALL_TRAINING),
    "rectifier_rnn_lm_ptb": Preset({**_RECTIFIER, **_REGULARISED, **_WORDS}, _FPNN_TRAINING),
    "rectifier_rnn_lm_text8_words": Preset({**_RECTIFIER, **_ONE_LAYER, **_WORDS}, _TEXT8_WORDS),
    "rectifier_rnn_lm_text8_chars": Preset({**_SMOOTH_OF_CHARACTERS, **_ONE_LAYER, **_CHARACTERS}, _TEXT8_CHARACTERS),
    "skipping_rnn_lm": Preset(
        {**_SMOOTH_RECTIFIER, **_SLOW_MATRIX, **_SKIP, **_ONE_LAYER, **_SMALL_WIDTH}, _FPNN_SMALL_TRAINING
    ),
    "skipping_rnn_lm_text8_chars": Preset(
        {**_SMOOTH_OF_CHARACTERS, **_SKIP, **_ONE_LAYER, **_CHARACTERS}, _TEXT8_CHARACTERS
    ),
}


# Gates on trained language models, of Takase, Suzuki & Nagata 2017.
#
# Dimension, dropout and learning rates are the paper's. The rest is the published program's, whose Adam adds epsilon
# before it corrects the second moment.


_GATED_EPOCHS = 5
_GATE = dict(output_gate="iog", gate_dim=300, gate_dropout=0.5, gate_init_range=0.05)

# The learning rate is 0.001 / sqrt(epoch).
_GATED_TRAINING = {
    **SUMMED_STEPS,
    "optimizer": "l2_adam",
    "adam-eps-added": "before-correction",
    "lr": ",".join(str(0.001 / epoch**0.5) for epoch in range(1, _GATED_EPOCHS + 1)),
    "lr-scheduler": "fixed",
    "weight-decay": 1e-6,
    "clip-norm": 1.0,
    "max-epoch": _GATED_EPOCHS,
}

ON_AWD: Dict[str, Value] = {"clip-norm": 0.1, "gate-init-range": 0.01}
"""Flags of ``fairseq-train`` that differ for a gate on AWD-LSTM, as in the published program."""

GATED_LANGUAGE_MODELS: Dict[str, Preset] = {
    name: Preset(_GATE, _GATED_TRAINING) for name in ("gated_lm", "gated_lm_ptb", "gated_lm_wt2")
}


# Transformer language models, of no paper: the size and rates of the small Transformers for translation.


_TRANSFORMER_LM: Dict[str, Value] = dict(
    decoder_layers=3,
    decoder_embed_dim=256,
    decoder_ffn_embed_dim=1024,
    decoder_attention_heads=4,
    dropout=0.3,
)
_TRANSFORMER_LM_TRAINING = {
    **STREAMS,
    "batch-size": 20,
    "optimizer": "adam",
    "adam-betas": "(0.9, 0.98)",
    "lr": 0.001,
    "lr-scheduler": "inverse_sqrt",
    "warmup-updates": 1000,
    "max-epoch": 20,
}

TRANSFORMER_LM_ARCHITECTURES: Dict[str, Preset] = {
    f"transformer_lm_{layer}": Preset({**_TRANSFORMER_LM, **output}, _TRANSFORMER_LM_TRAINING, tying=TRANSFORMER_TYING)
    for layer, output in TRANSFORMER_LAYERS.items()
}
