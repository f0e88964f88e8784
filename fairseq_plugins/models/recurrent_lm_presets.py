"""Hyper-parameters of the recurrent language models: small defaults and the papers' settings."""

from typing import Dict

from fairseq_plugins.models.presets import Preset

_SMALL = dict(
    rnn_cell="lstm",
    embed_dim=256,
    dropout_embedding=0.05,
    dropout_input=0.2,
    dropout_hidden=0.15,
    dropout_output=0.2,
    dropout_weight=0.2,
)
_SMALL_TIED = dict(_SMALL, hidden_sizes="512 512 256", output_layer="tied")
_SMALL_MIXTURE = dict(_SMALL, hidden_sizes="512 512 384", latent_dropout=0.2)

# Merity et al. 2018; the learning rate and row count are those of the published program
_AWD = dict(rnn_cell="lstm", dropout_embedding=0.1, dropout_output=0.4, dropout_weight=0.5)
_AWD_PTB = dict(
    _AWD, embed_dim=400, hidden_sizes="1150 1150 400", output_layer="tied", dropout_input=0.4, dropout_hidden=0.25
)
_AWD_WT2 = dict(_AWD_PTB, dropout_input=0.65, dropout_hidden=0.2)

# Pappas & Henderson 2019; their baselines, table 4, have the same networks below
_BILINEAR = dict(output_layer="bilinear")
_DUAL = dict(output_layer="dual")
_DRILL = dict(output_layer="drill", label_depth=4, label_dropout=0.6)
_DRILL_PTB = dict(_AWD_PTB, **_DRILL)
_DRILL_WT2 = dict(_AWD_WT2, **_DRILL, label_activation="relu", label_mask="standard")

# Yang et al. 2018
_MOS_PTB = dict(
    _AWD,
    embed_dim=280,
    hidden_sizes="960 960 620",
    output_layer="mos",
    experts_per_layer="0 0 0 15",
    dropout_input=0.4,
    dropout_hidden=0.225,
    latent_dropout=0.29,
)
_MOS_WT2 = dict(_MOS_PTB, embed_dim=300, hidden_sizes="1150 1150 650", dropout_input=0.55, dropout_hidden=0.2)

# Takase et al. 2018; on WikiText-2 the program's input dropout is 0.55 where the paper's table says 0.65
_DOC = dict(output_layer="doc", experts_per_layer="0 0 5 15", latent_dropout=0.6)
_DOC_PTB = dict(_MOS_PTB, **_DOC)
_DOC_WT2 = dict(_MOS_WT2, **_DOC)

# Zaremba et al. 2014 and Gal & Ghahramani 2016 as the base models of Takase et al. 2017: the medium and the large size
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

# Shuang et al. 2020: the ratio study at 9:1 (table IX), MoS (table IV) and WikiText-103 (table VI). Of the last, the
# paper leaves open the softmax (here exact), clipping (as in AWD-LSTM), windows (fixed) and penalties (none)
_MAJOR_MINOR = dict(rnn_cell="mmlstm", major_proportions="0.9")
_MM_PTB = dict(_AWD_PTB, **_MAJOR_MINOR, hidden_sizes="1240 1240 400")
_MM_WT2 = dict(_AWD_WT2, **_MAJOR_MINOR, hidden_sizes="1230 1230 400")
_MM_MOS = dict(rnn_cell="mmlstm", major_proportions="0.9 0.9 0.6")
_MM_MOS_PTB = dict(_MOS_PTB, **_MM_MOS, hidden_sizes="1080 1080 620", dropout_input=0.5, dropout_hidden=0.25)
_MM_MOS_WT2 = dict(_MOS_WT2, **_MM_MOS, hidden_sizes="1200 1200 650")
_MM_WT103 = dict(
    _MAJOR_MINOR,
    embed_dim=256,
    hidden_sizes="1100 256",
    output_layer="tied",
    dropout_hidden=0.1,
    dropout_output=0.1,
    dropout_weight=0.15,
)

_STREAMS = {
    "task": "stateful_lm",
    "criterion": "regularized_cross_entropy",
    "tokens-per-sample": 70,
    "clip-norm": 0.25,
    "batch-size-valid": 10,
    "distributed-world-size": 1,
}
_TRAINING = {
    **_STREAMS,
    "optimizer": "nt_asgd",
    "window-lengths": "random",
    "activation-regularization": 2.0,
    "temporal-activation-regularization": 1.0,
    "weight-decay": 1.2e-6,
    "nonmonotone-interval": 5,
}
_AWD_PTB_TRAINING = {**_TRAINING, "lr": 30, "batch-size": 20, "max-epoch": 500, "seed": 141}
_AWD_WT2_TRAINING = {**_TRAINING, "lr": 30, "batch-size": 80, "max-epoch": 750, "seed": 1882}
_DRILL_PTB_TRAINING = {**_AWD_PTB_TRAINING, "max-epoch": 1000, "seed": 28}
_DRILL_WT2_TRAINING = {**_AWD_WT2_TRAINING, "max-epoch": 2000}
_MOS_PTB_TRAINING = {
    **_TRAINING, "lr": 20, "batch-size": 12, "max-epoch": 1000, "seed": 28, "max-window": 110,
}  # fmt: skip
_MOS_WT2_TRAINING = {
    **_TRAINING, "lr": 15, "batch-size": 15, "max-epoch": 1000, "seed": 1882, "max-window": 90,
}  # fmt: skip
_DOC_TRAINING = {"max-epoch": 500, "nonmonotone-interval": 60, "balance": 0.001}
_DOC_PTB_TRAINING = {**_MOS_PTB_TRAINING, **_DOC_TRAINING}
_DOC_WT2_TRAINING = {**_MOS_WT2_TRAINING, **_DOC_TRAINING}

_MM_MOS_PTB_TRAINING = {**_MOS_PTB_TRAINING, "nonmonotone-interval": 10, "max-epoch": 500}
_MM_MOS_WT2_TRAINING = {**_MOS_WT2_TRAINING, "nonmonotone-interval": 10, "max-epoch": 500, "lr": 20}
_MM_WT103_TRAINING = {**_STREAMS, "optimizer": "adam", "lr": 0.001, "batch-size": 128, "max-epoch": 50}

# the loss of an update is summed over the steps of a window and is a mean over its rows, hence --sentence-avg; the rate
# is constant first, then multiplied in every epoch; the model after the last epoch is the result
_SGD = {
    **_STREAMS,
    "tokens-per-sample": 35,
    "batch-size": 20,
    "sentence-avg": True,
    "optimizer": "sgd",
    "lr": 1.0,
    "lr-scheduler": "fixed",
    "seed": 0,
}
_MEDIUM_TRAINING = {**_SGD, "clip-norm": 5, "max-epoch": 39, "force-anneal": 7, "lr-shrink": 1 / 1.2}
_LARGE_TRAINING = {**_SGD, "clip-norm": 10, "max-epoch": 55, "force-anneal": 15, "lr-shrink": 1 / 1.15}
_VARIATIONAL_MEDIUM_TRAINING = {**_MEDIUM_TRAINING, "weight-decay": 1e-7}
_VARIATIONAL_LARGE_TRAINING = {**_LARGE_TRAINING, "weight-decay": 1e-7, "seed": 2}

# published programs cap the windows of AWD-LSTM while fine-tuning only
_AWD_FINE_TUNING = {"max-window": 80}

ARCHITECTURES: Dict[str, Preset] = {
    "lstm_lm_awd": Preset(_SMALL_TIED),
    "lstm_lm_full": Preset(dict(_SMALL_TIED, hidden_sizes="512 512 512", output_layer="full")),
    "lstm_lm_bilinear": Preset(dict(_SMALL_TIED, **_BILINEAR)),
    "lstm_lm_dual": Preset(dict(_SMALL_TIED, **_DUAL)),
    "lstm_lm_drill": Preset(dict(_SMALL_TIED, output_layer="drill", label_depth=2)),
    "lstm_lm_mos": Preset(dict(_SMALL_MIXTURE, output_layer="mos")),
    "lstm_lm_doc": Preset(dict(_SMALL_MIXTURE, output_layer="doc")),
    "lstm_lm_awd_ptb": Preset(_AWD_PTB, _AWD_PTB_TRAINING, _AWD_FINE_TUNING),
    "lstm_lm_awd_wt2": Preset(_AWD_WT2, _AWD_WT2_TRAINING, _AWD_FINE_TUNING),
    "lstm_lm_full_ptb": Preset(
        dict(_AWD_PTB, hidden_sizes="1150 1150 1150", output_layer="full"), _AWD_PTB_TRAINING, _AWD_FINE_TUNING
    ),
    "lstm_lm_full_wt2": Preset(
        dict(_AWD_WT2, hidden_sizes="1150 1150 1150", output_layer="full"), _AWD_WT2_TRAINING, _AWD_FINE_TUNING
    ),
    **{
        f"lstm_lm_{name}_{corpus}": Preset({**network, **layer}, training, _AWD_FINE_TUNING)
        for name, layer in (("bilinear", _BILINEAR), ("dual", _DUAL))
        for corpus, network, training in (
            ("ptb", _AWD_PTB, _DRILL_PTB_TRAINING),
            ("wt2", _AWD_WT2, _DRILL_WT2_TRAINING),
        )
    },
    "lstm_lm_drill_ptb": Preset(_DRILL_PTB, _DRILL_PTB_TRAINING, _AWD_FINE_TUNING),
    "lstm_lm_drill_wt2": Preset(_DRILL_WT2, _DRILL_WT2_TRAINING, _AWD_FINE_TUNING),
    "lstm_lm_mos_ptb": Preset(_MOS_PTB, _MOS_PTB_TRAINING, {"lr": 25}),
    "lstm_lm_mos_wt2": Preset(_MOS_WT2, _MOS_WT2_TRAINING, {"lr": 20}),
    "lstm_lm_doc_ptb": Preset(_DOC_PTB, _DOC_PTB_TRAINING, {}),
    "lstm_lm_doc_wt2": Preset(_DOC_WT2, _DOC_WT2_TRAINING, {}),
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
    "mmlstm_lm": Preset(dict(_SMALL_TIED, **_MAJOR_MINOR)),
    "mmlstm_lm_mos": Preset(dict(_SMALL_MIXTURE, **_MM_MOS, output_layer="mos")),
    "mmlstm_lm_ptb": Preset(_MM_PTB, {**_AWD_PTB_TRAINING, "max-epoch": 300}),
    "mmlstm_lm_wt2": Preset(_MM_WT2, {**_AWD_WT2_TRAINING, "max-epoch": 300}),
    "mmlstm_lm_wt103": Preset(_MM_WT103, _MM_WT103_TRAINING),
    "mmlstm_lm_mos_ptb": Preset(_MM_MOS_PTB, _MM_MOS_PTB_TRAINING, {"lr": 25}),
    "mmlstm_lm_mos_wt2": Preset(_MM_MOS_WT2, _MM_MOS_WT2_TRAINING, {"lr": 20}),
}
"""Values of ``--arch`` and their presets."""
