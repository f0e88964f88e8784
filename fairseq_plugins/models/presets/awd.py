"""AWD-LSTM with a single softmax: full, tied, bilinear, dual nonlinear or DRILL."""

from typing import Dict

from fairseq_plugins.models.presets.language_model_training import AVERAGED, SMALL
from fairseq_plugins.models.presets.preset import Preset

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

# Merity et al. 2018; where the published program has other rows and another dropout_hidden, they are the program's
AWD = dict(rnn_cell="lstm", dropout_embedding=0.1, dropout_output=0.4, dropout_weight=0.5)
AWD_PTB = dict(
    AWD, embed_dim=400, hidden_sizes="1150 1150 400", output_layer="tied", dropout_input=0.4, dropout_hidden=0.25
)
AWD_WT2 = dict(AWD_PTB, dropout_input=0.65, dropout_hidden=0.2)
AWD_PTB_TRAINING = {**AVERAGED, "lr": 30, "batch-size": 20, "max-epoch": 500, "seed": 141}
AWD_WT2_TRAINING = {**AVERAGED, "lr": 30, "batch-size": 80, "max-epoch": 750, "seed": 1882}

# Pappas & Henderson 2019; their baselines, table 4, have the same networks below, and full is trained as AWD-LSTM
_BILINEAR = dict(output_layer="bilinear")
_DUAL = dict(output_layer="dual")
_DRILL = dict(output_layer="drill", label_depth=4, label_dropout=0.6)
_FULL = dict(hidden_sizes="1150 1150 1150", output_layer="full")
_LABELS_PTB_TRAINING = {**AWD_PTB_TRAINING, "max-epoch": 1000, "seed": 28}
_LABELS_WT2_TRAINING = {**AWD_WT2_TRAINING, "max-epoch": 2000}

# published programs cap the windows of AWD-LSTM while fine-tuning only
_FINE_TUNING = {"max-window": 80}

ARCHITECTURES: Dict[str, Preset] = {
    "lstm_lm_awd": Preset(SMALL_TIED, SMALL),
    "lstm_lm_full": Preset(dict(SMALL_TIED, hidden_sizes="512 512 512", output_layer="full"), SMALL),
    "lstm_lm_bilinear": Preset(dict(SMALL_TIED, **_BILINEAR), SMALL),
    "lstm_lm_dual": Preset(dict(SMALL_TIED, **_DUAL), SMALL),
    "lstm_lm_drill": Preset(dict(SMALL_TIED, output_layer="drill", label_depth=2), SMALL),
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
"""Values of ``--arch`` and their presets."""
