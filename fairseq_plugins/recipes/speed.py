"""Trainings that are timed and thrown away: fixed rows and windows, nothing annealed."""

from typing import Dict, Mapping

from fairseq_plugins.models.presets import LANGUAGE_MODELS, Value
from fairseq_plugins.recipes.fpnn import TEXT8_WORDS
from fairseq_plugins.recipes.recipe import Recipe
from fairseq_plugins.recipes.system import System

_SGD = {"tokens-per-sample": 70, "optimizer": "sgd", "lr": 0.1, "clip-norm": 0.25, "num-workers": 1}
_STREAMS = {"task": "stateful_lm", "criterion": "regularized_cross_entropy"}
_REGULARIZED = {**_STREAMS, "activation-regularization": 2, "temporal-activation-regularization": 1}


def _recipe(
    *, name: str, title: str, corpus: str, training: Mapping[str, Value], systems: Mapping[str, System]
) -> Recipe:
    return Recipe(
        name=f"speed_{name}",
        title=f"Speed: {title}",
        corpus=f"bash data-prep/{corpus}/prepare.sh",
        systems=systems,
        training=training,
        training_of_presets="left out",
        notes="The first system is the reference of the ratios; python -m fairseq_plugins.cli.benchmark_lm measures.",
    )


def _published(suffix: str) -> Dict[str, System]:
    """The papers' models for a corpus; DOC's network with one softmax, with other labels and with the plain loss."""
    doc = {"arch": f"lstm_lm_doc_{suffix}", "balance": 0.001}
    drill = {"label-encoder": "drill", "label-depth": 4, "label-dropout": 0.6}
    return {
        "awd": System({"arch": f"lstm_lm_awd_{suffix}"}, label="AWD-LSTM"),
        "doc-one-softmax": System(
            {"arch": f"lstm_lm_doc_{suffix}", "output-layer": "full"}, label="DOC's network, one softmax"
        ),
        "mos": System({"arch": f"lstm_lm_mos_{suffix}"}, label="AWD-LSTM-MoS"),
        "doc": System(doc, label="AWD-LSTM-DOC"),
        "doc-drill": System({**doc, **drill}, label="AWD-LSTM-DOC, DRILL's labels"),
        "doc-plain": System({**doc, "output-loss": "plain"}, label="AWD-LSTM-DOC, plain loss"),
    }


PTB = _recipe(
    name="ptb",
    title="the papers' presets for Penn Treebank, all with the rows of DOC",
    corpus="ptb",
    training={**_REGULARIZED, **_SGD, "batch-size": 12},
    systems=_published("ptb"),
)
WT2 = _recipe(
    name="wt2",
    title="the papers' presets for WikiText-2, all with the same rows",
    corpus="wikitext-2",
    training={**_REGULARIZED, **_SGD, "batch-size": 12},
    systems=_published("wt2"),
)
LABELS = _recipe(
    name="labels",
    title="the output layers of Pappas & Henderson 2019, table 4, with the rows of AWD-LSTM",
    corpus="ptb",
    training={**_REGULARIZED, **_SGD, "batch-size": 20},
    systems={
        name: System({"arch": f"lstm_lm_{arch}_ptb"}, label=label)
        for name, arch, label in (
            ("tied", "awd", "tied"),
            ("bilinear", "bilinear", "bilinear"),
            ("dual", "dual", "dual"),
            ("drill", "drill", "DRILL"),
        )
    },
)
MAJOR_MINOR = _recipe(
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
WIKITEXT103 = _recipe(
    name="wt103",
    title="table VII of Shuang et al. 2020: 128 rows, 267,735 words, one softmax",
    corpus="wikitext-103",
    training={**_STREAMS, **_SGD, "optimizer": "adam", "lr": 0.001, "batch-size": 128},
    systems={
        "lstm": System({"arch": "mmlstm_lm_wt103", "rnn-cell": "lstm", "hidden-sizes": "1024 256"}, label="LSTM"),
        "mmlstm": System({"arch": "mmlstm_lm_wt103"}, label="MMLSTM"),
    },
)
FPNN = _recipe(
    name="fpnn",
    title="linear and rectifier networks of Pachitariu & Sahani 2013 on text8, 512 units, with and without noise",
    corpus="text8",
    training={**_STREAMS, "optimizer": "adagrad", "lr": 0.05, "tokens-per-sample": 20, "batch-size": 64},
    systems={
        name: System(TEXT8_WORDS.system(name).flags, label=label)
        for name, label in (
            ("fpnn", "FPNN"),
            ("fpnn+nce", "FPNN, 25 noise words"),
            ("rectifier", "rectifier"),
            ("rectifier+nce", "rectifier, 25 noise words"),
        )
    },
)
HOST = _recipe(
    name="host",
    title="fairseq's own lstm_lm against lstm_lm_awd: three layers of width 512, a tied softmax",
    corpus="ptb",
    training={**_SGD, "batch-size": 20},
    systems={
        "host": System(
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


def _every_preset(suffix: str, *, corpus: str) -> Recipe:
    """The host's model, ours of the same size, and every preset for the corpus with its paper's rows and windows."""
    presets = {arch: preset for arch, preset in LANGUAGE_MODELS.items() if arch.endswith(f"_{suffix}")}
    kept = ("batch-size", "row-groups", "tokens-per-sample", "balance")
    systems = {}
    for arch, preset in presets.items():
        rows = {flag: preset.training[flag] for flag in kept if flag in preset.training}
        systems[arch] = System({**_REGULARIZED, **rows, "arch": arch})
    host, awd = (System({**HOST.training, **system.flags}, label=system.label) for system in HOST.systems.values())
    return _recipe(
        name=f"presets_{suffix}",
        title=f"every preset for {corpus}, with the rows and windows of its paper, and fairseq's own lstm_lm",
        corpus=corpus,
        training=_SGD,
        systems={"host": host, "awd": awd, **systems},
    )


PRESETS: Dict[str, Recipe] = {
    "ptb": _every_preset("ptb", corpus="ptb"),
    "wt2": _every_preset("wt2", corpus="wikitext-2"),
}
"""By the suffix of the architectures."""
