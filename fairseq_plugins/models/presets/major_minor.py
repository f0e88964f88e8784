"""Major-Minor LSTM language models of Shuang et al. 2020.

The ratio study at 9:1 is table IX, MoS table IV and WikiText-103 table VI. Of the last, the paper leaves open the
softmax (here exact), clipping (as in AWD-LSTM), windows (fixed) and penalties (none); of MoS, rows, seeds, groups of
rows and fine-tuning (all as in Yang et al. 2018).
"""

from typing import Dict

from fairseq_plugins.models.presets.awd import AWD_PTB, AWD_PTB_TRAINING, AWD_WT2, AWD_WT2_TRAINING, SMALL_TIED
from fairseq_plugins.models.presets.language_model_training import SMALL, STREAMS
from fairseq_plugins.models.presets.mixtures import (
    MOS_PTB,
    MOS_PTB_FINE_TUNING,
    MOS_PTB_TRAINING,
    MOS_WT2,
    MOS_WT2_FINE_TUNING,
    MOS_WT2_TRAINING,
    SMALL_MIXTURE,
)
from fairseq_plugins.models.presets.preset import Preset

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

ARCHITECTURES: Dict[str, Preset] = {
    "mmlstm_lm": Preset(dict(SMALL_TIED, **_MAJOR_MINOR), SMALL),
    "mmlstm_lm_mos": Preset(dict(SMALL_MIXTURE, **_MM_MOS, output_layer="mos"), SMALL),
    "mmlstm_lm_ptb": Preset(_MM_PTB, {**AWD_PTB_TRAINING, "max-epoch": 300}),
    "mmlstm_lm_wt2": Preset(_MM_WT2, {**AWD_WT2_TRAINING, "max-epoch": 300}),
    "mmlstm_lm_wt103": Preset(_MM_WT103, _MM_WT103_TRAINING),
    "mmlstm_lm_mos_ptb": Preset(_MM_MOS_PTB, {**MOS_PTB_TRAINING, **_MM_MOS_TRAINING}, MOS_PTB_FINE_TUNING),
    "mmlstm_lm_mos_wt2": Preset(_MM_MOS_WT2, {**MOS_WT2_TRAINING, **_MM_MOS_TRAINING, "lr": 20}, MOS_WT2_FINE_TUNING),
}
"""Values of ``--arch`` and their presets."""
