"""AWD-LSTM with a mixture of softmaxes: MoS and DOC."""

from typing import Dict

from fairseq_plugins.models.presets.awd import AWD, SMALL_NETWORK
from fairseq_plugins.models.presets.language_model_training import AVERAGED, SMALL
from fairseq_plugins.models.presets.preset import Preset

SMALL_MIXTURE = dict(SMALL_NETWORK, hidden_sizes="512 512 384", latent_dropout=0.2)

# Yang et al. 2018; on WikiText-2 the programs of MoS and DOC compute the rows of an update in three groups
MOS_PTB = dict(
    AWD,
    embed_dim=280,
    hidden_sizes="960 960 620",
    output_layer="mos",
    experts_per_layer="0 0 0 15",
    dropout_input=0.4,
    dropout_hidden=0.225,
    latent_dropout=0.29,
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

# Takase et al. 2018; on WikiText-2 the program's input dropout is 0.55 where the paper's table says 0.65
_DOC = dict(output_layer="doc", experts_per_layer="0 0 5 15", latent_dropout=0.6)
_BALANCE = {"balance": 0.001}
_DOC_TRAINING = {**_BALANCE, "max-epoch": 500, "nonmonotone-interval": 60}

ARCHITECTURES: Dict[str, Preset] = {
    "lstm_lm_mos": Preset(dict(SMALL_MIXTURE, output_layer="mos"), SMALL),
    "lstm_lm_doc": Preset(dict(SMALL_MIXTURE, output_layer="doc"), {**SMALL, **_BALANCE}),
    "lstm_lm_mos_ptb": Preset(MOS_PTB, MOS_PTB_TRAINING, MOS_PTB_FINE_TUNING),
    "lstm_lm_mos_wt2": Preset(MOS_WT2, MOS_WT2_TRAINING, MOS_WT2_FINE_TUNING),
    "lstm_lm_doc_ptb": Preset(dict(MOS_PTB, **_DOC), {**MOS_PTB_TRAINING, **_DOC_TRAINING}, {}),
    "lstm_lm_doc_wt2": Preset(dict(MOS_WT2, **_DOC), {**MOS_WT2_TRAINING, **_DOC_TRAINING}, {}),
}
"""Values of ``--arch`` and their presets."""
