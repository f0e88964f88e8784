"""Recipes whose runs are timed and thrown away, with fixed rows and windows and without annealing."""

from dataclasses import replace
from typing import Dict, Iterable, Mapping

from fairseq_plugins.models.presets import LANGUAGE_MODELS, Value
from fairseq_plugins.models.presets.translation import TRANSFORMER_SMALL_TRAINING
from fairseq_plugins.recipes.language_models import FPNN_TEXT8_WORDS
from fairseq_plugins.recipes.recipe import Recipe, System, labelled
from fairseq_plugins.recipes.small_language_models import REDUCED
from fairseq_plugins.recipes.translation import MULTI30K

_SGD = {"tokens-per-sample": 70, "optimizer": "sgd", "lr": 0.1, "clip-norm": 0.25, "num-workers": 1}
_STREAMS = {"task": "stateful_lm", "criterion": "regularized_cross_entropy"}
_REGULARIZED = {**_STREAMS, "activation-regularization": 2, "temporal-activation-regularization": 1}


def _speed_recipe(
    *, name: str, title: str, corpus: str, training: Mapping[str, Value], systems: Mapping[str, System]
) -> Recipe:
    return Recipe(
        name=f"speed_{name}",
        title=f"Speed: {title}",
        corpus=f"bash data-prep/{corpus}/prepare.sh",
        systems=systems,
        training=training,
        training_of_presets="left out",
    )


def _speed_systems() -> Dict[str, System]:
    """Models of the papers, and DOC's network with one softmax, with DRILL's labels and with the plain loss."""
    doc = {"arch": "lstm_lm_doc_ptb", "balance": 0.001}
    drill = {"label-encoder": "drill", "label-depth": 4, "label-dropout": 0.6}
    one_softmax = {"arch": "lstm_lm_doc_ptb", "output-layer": "full"}
    return labelled(
        {
            "awd": ("AWD-LSTM", {"arch": "lstm_lm_awd_ptb"}),
            "doc-one-softmax": ("DOC's network, one softmax", one_softmax),
            "mos": ("AWD-LSTM-MoS", {"arch": "lstm_lm_mos_ptb"}),
            "doc": ("AWD-LSTM-DOC", doc),
            "doc-drill": ("AWD-LSTM-DOC, DRILL's labels", {**doc, **drill}),
            "doc-plain": ("AWD-LSTM-DOC, plain loss", {**doc, "output-loss": "plain"}),
        }
    )


SPEED_PTB = _speed_recipe(
    name="ptb",
    title="the papers' presets for Penn Treebank, all with the rows of DOC",
    corpus="ptb",
    training={**_REGULARIZED, **_SGD, "batch-size": 12},
    systems=_speed_systems(),
)
SPEED_LABELS = _speed_recipe(
    name="labels",
    title="the output layers of Pappas & Henderson 2019, table 4, with the rows of AWD-LSTM",
    corpus="ptb",
    training={**_REGULARIZED, **_SGD, "batch-size": 20},
    systems=labelled(
        {
            "tied": ("tied", {"arch": "lstm_lm_awd_ptb"}),
            "bilinear": ("bilinear", {"arch": "lstm_lm_bilinear_ptb"}),
            "dual": ("dual", {"arch": "lstm_lm_dual_ptb"}),
            "drill": ("DRILL", {"arch": "lstm_lm_drill_ptb"}),
        }
    ),
)
SPEED_MMLSTM = _speed_recipe(
    name="mmlstm",
    title="AWD-LSTM-MoS and AWD-LSTM on Major-Minor LSTMs and on LSTMs of the same widths",
    corpus="ptb",
    training={**_REGULARIZED, **_SGD, "batch-size": 12},
    systems={
        f"{name}-{cell}": System({"arch": arch, "rnn-cell": cell}, label=f"{label}, {cell}")
        for name, label, arch in (("mos", "MoS", "mmlstm_lm_mos_ptb"), ("tied", "tied", "mmlstm_lm_ptb"))
        for cell in ("lstm", "mmlstm")
    },
)
SPEED_WT103 = _speed_recipe(
    name="wt103",
    title="table VII of Shuang et al. 2020: 128 rows, 267,735 words, one softmax",
    corpus="wikitext-103",
    training={**_STREAMS, **_SGD, "optimizer": "adam", "lr": 0.001, "batch-size": 128},
    systems={
        "lstm": System({"arch": "mmlstm_lm_wt103", "rnn-cell": "lstm", "hidden-sizes": "1024 256"}, label="LSTM"),
        "mmlstm": System({"arch": "mmlstm_lm_wt103"}, label="MMLSTM"),
    },
)
_WORDS = FPNN_TEXT8_WORDS.systems
SPEED_FPNN = _speed_recipe(
    name="fpnn",
    title="linear and rectifier networks of Pachitariu & Sahani 2013 on text8, 512 units, with and without noise",
    corpus="text8",
    training={**_STREAMS, "optimizer": "adagrad", "lr": 0.05, "tokens-per-sample": 20, "batch-size": 64},
    systems=labelled(
        {
            "fpnn": ("FPNN", _WORDS["fpnn"].flags),
            "fpnn+nce": ("FPNN, 25 noise words", _WORDS["fpnn+nce"].flags),
            "rectifier": ("rectifier", _WORDS["rectifier"].flags),
            "rectifier+nce": ("rectifier, 25 noise words", _WORDS["rectifier+nce"].flags),
        }
    ),
)
SPEED_FAIRSEQ = _speed_recipe(
    name="fairseq",
    title="fairseq's own lstm_lm against lstm_lm_awd: three layers of width 512, a tied softmax",
    corpus="ptb",
    training={**_SGD, "batch-size": 20},
    systems={
        "fairseq": System(
            {
                "task": "language_modeling",
                "arch": "lstm_lm",
                "criterion": "cross_entropy",
                "decoder-embed-dim": 512,
                "decoder-hidden-size": 512,
                "decoder-out-embed-dim": 512,
                "decoder-layers": 3,
                "share-decoder-input-output-embed": True,
                "decoder-attention": 0,
                "dropout": 0.2,
            },
            label="fairseq lstm_lm",
        ),
        "awd": System(
            {**_REGULARIZED, "arch": "lstm_lm_awd", "embed-dim": 512, "hidden-sizes": "512 512 512"},
            label="lstm_lm_awd",
        ),
    },
)

_TRANSFORMER_SIZES = {"layers": 3, "embed-dim": 256, "ffn-embed-dim": 1024, "attention-heads": 4}
SPEED_TRANSFORMER = _speed_recipe(
    name="transformer",
    title="fairseq's transformer and ours with each output layer: width 256, three layers",
    corpus="multi30k",
    training={**TRANSFORMER_SMALL_TRAINING, "share-decoder-input-output-embed": True},
    systems={
        "fairseq": System(
            {
                "arch": "transformer",
                "criterion": "label_smoothed_cross_entropy",
                "dropout": 0.2,
                **{f"{side}-{name}": n for side in ("encoder", "decoder") for name, n in _TRANSFORMER_SIZES.items()},
            },
            label="fairseq transformer, tied",
        ),
        "tied": System({"arch": "transformer_full"}, label="transformer_full, tied"),
        **{
            layer: System({"arch": f"transformer_{layer}"}, label=f"transformer_{layer}")
            for layer in ("bilinear", "dual", "drill", "mos", "doc")
        },
    },
)


def _speed_of_presets() -> Recipe:
    """fairseq's model, ours of the same size, and every preset for Penn Treebank with its paper's rows and windows."""
    presets = {arch: preset for arch, preset in LANGUAGE_MODELS.items() if arch.endswith("_ptb")}
    kept = ("batch-size", "row-groups", "tokens-per-sample", "balance")
    systems = {}
    for arch, preset in presets.items():
        rows = {flag: preset.training[flag] for flag in kept if flag in preset.training}
        systems[arch] = System({**_REGULARIZED, **rows, "arch": arch})
    own, awd = (
        System({**SPEED_FAIRSEQ.training, **system.flags}, label=system.label)
        for system in SPEED_FAIRSEQ.systems.values()
    )
    return _speed_recipe(
        name="presets_ptb",
        title="every preset for Penn Treebank, with the rows and windows of its paper, and fairseq's own lstm_lm",
        corpus="ptb",
        training=_SGD,
        systems={"fairseq": own, "awd": awd, **systems},
    )


SPEED_PRESETS_PTB = _speed_of_presets()


def only(recipe: Recipe, systems: Iterable[str]) -> Recipe:
    """The recipe with the named systems alone."""
    return replace(recipe, systems={name: recipe.system(name) for name in systems})


SUITES: Dict[str, Recipe] = {
    "ptb": SPEED_PTB,
    "labels": SPEED_LABELS,
    "mmlstm": SPEED_MMLSTM,
    "wt103": SPEED_WT103,
    "fpnn": SPEED_FPNN,
    "fairseq": SPEED_FAIRSEQ,
    "rhn": only(SPEED_PRESETS_PTB, ["rhn_lm_ptb", "rhn_lm_tied_ptb"]),
    "reduced": only(REDUCED, ["tied", "mos", "doc"]),
    "mmlstm-reduced": only(REDUCED, ["tied", "9:1", "7:3", "5:5", "mos", "mmlstm-mos", "mmlstm-doc"]),
    "lstm": MULTI30K,
    "transformer": SPEED_TRANSFORMER,
}
"""The systems of each suite of ``training.py``. The first is the reference of the ratios.

Language models of a suite share data, and rows and window if their recipe has them.
"""
