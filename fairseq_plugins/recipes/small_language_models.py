"""Recipes of language models of 4M to 11M parameters at a budget of two CPU cores, with equal data and updates."""

from dataclasses import replace
from typing import Dict, Mapping

from fairseq_plugins.models.presets import Value
from fairseq_plugins.models.presets.language_models import ON_AWD, SMALL, STREAMS
from fairseq_plugins.recipes.language_models import gate_on
from fairseq_plugins.recipes.recipe import ON_CPUS, Base, Recipe, System

# Epochs of SGD at a constant rate, then one whose weights are averaged.


def _with_averaged(systems: Mapping[str, System]) -> Dict[str, System]:
    """The systems, and NAME-averaged, which continues NAME for one epoch of averaged SGD, for each."""
    averaged = {
        f"{name}-averaged": System(
            {**system.flags, "averaging": "immediate", "max-epoch": 1},
            base=Base(system=name, flag="finetune-from-model"),
        )
        for name, system in systems.items()
    }
    return {**systems, **averaged}


_SINGLE = {"arch": "lstm_lm_awd", "embed-dim": 150, "hidden-sizes": "400 400 150"}
_LABELS = {**_SINGLE, "label-dropout": 0.3}
_DRILL = {**_LABELS, "output-layer": "drill"}
_MIXTURE = {"embed-dim": 100, "hidden-sizes": "400 400 280"}
_FOUR, _THREE_AND_ONE = {"experts-per-layer": "0 0 0 4"}, {"experts-per-layer": "0 0 1 3"}
_MMLSTM = {"arch": "mmlstm_lm", "embed-dim": 150}
_MM_MIXTURE = {"arch": "mmlstm_lm_mos", "embed-dim": 100, "hidden-sizes": "457 457 280"}
_NINE, _WITHOUT_LAST = {"major-proportions": "0.9"}, {"major-proportions": "0.9 0.9 1"}
_PREVIOUS = {"minor-input": "previous"}

REDUCED = Recipe(
    name="reduced",
    title="Language models of Penn Treebank at a CPU budget: the same data, updates, dropout and seed for all",
    corpus="bash data-prep/ptb/prepare.sh",
    systems=_with_averaged(
        {
            "tied": System({**_SINGLE, "output-layer": "tied"}),
            "full": System({**_SINGLE, "output-layer": "full"}),
            "bilinear": System({**_LABELS, "output-layer": "bilinear"}),
            "dual": System({**_LABELS, "output-layer": "dual"}),
            **{f"drill{depth}": System({**_DRILL, "label-depth": depth}) for depth in range(5)},
            "standard": System({**_DRILL, "label-depth": 4, "label-mask": "standard"}),
            "9:1": System({**_MMLSTM, **_NINE, "hidden-sizes": "431 431 150"}),
            "9:1-without3": System({**_MMLSTM, **_WITHOUT_LAST, "hidden-sizes": "428 428 150"}),
            "9:1-previous": System({**_MMLSTM, **_PREVIOUS, **_NINE, "hidden-sizes": "425 425 150"}),
            "7:3": System({**_MMLSTM, "major-proportions": "0.7", "hidden-sizes": "494 494 150"}),
            "5:5": System({**_MMLSTM, "major-proportions": "0.5", "hidden-sizes": "540 540 150"}),
            "mos": System({"arch": "lstm_lm_mos", **_MIXTURE, **_FOUR}),
            "doc": System({"arch": "lstm_lm_doc", **_MIXTURE, **_THREE_AND_ONE}),
            "mmlstm-mos": System({**_MM_MIXTURE, **_FOUR}),
            "mmlstm-mos-without3": System({**_MM_MIXTURE, **_FOUR, **_WITHOUT_LAST, "hidden-sizes": "428 428 280"}),
            "mmlstm-mos-previous": System({**_MM_MIXTURE, **_FOUR, **_PREVIOUS, "hidden-sizes": "437 437 280"}),
            "mmlstm-doc": System({**_MM_MIXTURE, **_THREE_AND_ONE, "output-layer": "doc", "balance": 0.001}),
        }
    ),
    training=ON_CPUS,
    notes="""tied, full, bilinear, dual, drillK (depth K, variational label dropout), standard (depth 4, a mask for
each label): the output layers of Pappas & Henderson 2019, table 4.
N:M: tied softmax on Major-Minor LSTMs with majors and minors of that ratio, as many parameters as tied.
mos, doc: four experts on the last layer; three there and one on the layer below, with the balance term.
mmlstm-mos, mmlstm-doc: the same on Major-Minor LSTMs of ratios 9:1, 9:1 and 6:4.
-without3, -previous: without the minor of the last layer; minors that read the layer below. As many parameters.
-averaged: one more epoch, of averaged SGD, from a trained system: --finetune-from-model CKPT.
Results: results/drill_reduced and results/mmlstm.""",
)

# Penn Treebank in eight epochs of Adam, for comparisons over several seeds. The presets give the other dropout rates.

_SMALL_TIED = {"arch": "lstm_lm_awd", "dropout-weight": 0.1}
_SMALL_MOS = {"arch": "lstm_lm_mos", "dropout-weight": 0.1, "embed-dim": 192}
_OF_DOC = {"balance": 0.001, "expert-warmup": 1000}
_SMALL_DOC = {**_SMALL_MOS, **_OF_DOC, "arch": "lstm_lm_doc"}
_SMALL_TRANSFORMER: Dict[str, Value] = {
    **{"arch": "transformer_lm_full", "share-decoder-input-output-embed": True, "decoder-normalize-before": True},
    **{"dropout": 0.2, "lr": 0.002, "window-lengths": "fixed"},
    **{"activation-regularization": 0, "temporal-activation-regularization": 0},
}

PTB_SMALL = Recipe(
    name="ptb_small",
    title="Language models of Penn Treebank, 4.9M parameters and eight epochs, with equal data, updates and dropout",
    corpus="bash data-prep/ptb/prepare.sh",
    systems={
        "tied": System({**_SMALL_TIED, "hidden-sizes": "512 256"}, label="tied softmax"),
        "one-expert": System(
            {**_SMALL_MOS, "hidden-sizes": "576 320", "experts-per-layer": "0 0 1"}, label="one expert"
        ),
        "mos": System({**_SMALL_MOS, "hidden-sizes": "552 320", "experts-per-layer": "0 0 4"}, label="MoS"),
        "doc": System({**_SMALL_DOC, "hidden-sizes": "544 320", "experts-per-layer": "0 1 3"}, label="DOC"),
        "drill": System(
            {**_SMALL_TIED, "hidden-sizes": "472 256", "output-layer": "drill", "label-depth": 4, "label-dropout": 0.2},
            label="DRILL, depth 4",
        ),
        "mmlstm": System(
            {**_SMALL_TIED, "hidden-sizes": "560 256", "rnn-cell": "mmlstm", "major-proportions": "0.9"},
            label="Major-Minor LSTM, tied",
        ),
        "mmlstm-mos": System(
            {
                **{**_SMALL_MOS, "hidden-sizes": "660 320", "experts-per-layer": "0 0 4"},
                **{"rnn-cell": "mmlstm", "major-proportions": "0.9 0.6"},
            },
            label="Major-Minor LSTM, MoS",
        ),
        "mogrifier": System(
            {"arch": "mogrifier_lm", "hidden-sizes": "472 256", "lr": 0.004}, label="Mogrifier LSTM, tied"
        ),
        "mogrifier-doc": System(
            {
                **{"arch": "mogrifier_lm", "embed-dim": 192, "hidden-sizes": "504 320", "lr": 0.004},
                **{**_OF_DOC, "output-layer": "doc", "experts-per-layer": "0 1 3", "latent-dropout": 0.2},
            },
            label="Mogrifier LSTM, DOC",
        ),
        "transformer": System(_SMALL_TRANSFORMER, label="Transformer, tied"),
        "transformer-doc": System(
            {
                **{**_SMALL_TRANSFORMER, **_OF_DOC, "arch": "transformer_lm_doc", "latent-dropout": 0.2},
                **{"decoder-ffn-embed-dim": 848, "experts-per-layer": "0 0 1 3"},
            },
            label="Transformer, DOC",
        ),
    },
    training={
        **STREAMS,
        "window-lengths": "random",
        "tokens-per-sample": 35,
        "batch-size": 40,
        "activation-regularization": 2.0,
        "temporal-activation-regularization": 1.0,
        "optimizer": "l2_adam",
        "weight-decay": 1.2e-6,
        "lr": 0.008,
        "lr-scheduler": "cosine",
        "warmup-updates": 400,
        "max-update": 5400,
        "bf16": True,
        **ON_CPUS,
    },
    training_of_presets="left out",
    notes="""The rate rises for 400 updates and falls along a cosine to zero after 5,400, which read 7.5M words: give
more text a larger --max-update. Rate and dropout were searched on valid, with the tied softmax and with the
Transformer; Mogrifier LSTMs have half the rate, because they diverge at the full rate. one-expert is one softmax
behind one more matrix. doc has --expert-warmup 1000, which is not in the paper. Without products in bfloat16 a
processor trains in float32, in one and a half to three hours.
Results: results/ptb_small.""",
)

_SIZES_OF_WT2: Dict[str, Mapping[str, Value]] = {
    **{"tied": {}, "transformer": {}, "transformer-doc": {}},
    "one-expert": {"embed-dim": 224, "hidden-sizes": "632 320"},
    "mos": {"embed-dim": 224, "hidden-sizes": "600 320"},
    "doc": {"embed-dim": 224, "hidden-sizes": "592 320"},
}

WT2_SMALL = replace(
    PTB_SMALL,
    name="wt2_small",
    title="Language models of WikiText-2, 10.9M parameters and 5,400 updates, with equal data and updates",
    corpus="bash data-prep/wikitext-2/prepare.sh",
    systems={
        name: System({**PTB_SMALL.systems[name].flags, **sizes}, label=PTB_SMALL.label(name))
        for name, sizes in _SIZES_OF_WT2.items()
    },
    notes="""Systems and training of the recipe ptb_small, with sizes for 33,278 words. 5,400 updates are 3.6 epochs.
Nothing was chosen on this corpus. Results: results/wt2_small.""",
)

# Base models of Takase et al. 2017 and a Mogrifier LSTM, and gates on them.
#
# All have about 4.0M parameters and the training of the recipe ``reduced``, with a constant rate for six epochs. The
# published schedules hold the rate for 6 to 20 epochs and anneal it for dozens, which six epochs cannot copy. The
# published rate of 1.0 belongs to a loss that is a sum over 35 steps, so it corresponds to 35 for the mean. 20 is near
# it. The rate of recurrent highway networks is 0.2, which corresponds to 7.

_LSTM = {**SMALL, "embed-dim": 175, "hidden-sizes": "175 175"}
_DROPOUT = {"dropout-embedding": 0.05, "dropout-input": 0.2, "dropout-hidden": 0.15, "dropout-output": 0.2}
_RHN = {"recurrence-depth": 8, "dropout-recurrent": 0.1, **_DROPOUT}
_BASE_MODELS: Dict[str, Mapping[str, Value]] = {
    "zaremba": {"arch": "lstm_lm_zaremba_medium", **_LSTM, **_DROPOUT, "dropout-embedding": 0},
    "variational": {"arch": "lstm_lm_variational_medium", **_LSTM, **_DROPOUT, "dropout-recurrent": 0.2},
    "rhn": {"arch": "rhn_lm", "embed-dim": 173, "hidden-sizes": "173", **_RHN},
    "rhn-tied": {"arch": "rhn_lm_tied", "embed-dim": 268, "hidden-sizes": "268", **_RHN},
    "mogrifier": {"arch": "mogrifier_lm", "embed-dim": 267, "hidden-sizes": "267 267"},
    **{base: REDUCED.systems[name].flags for base, name in (("awd", "tied"), ("mos", "mos"), ("doc", "doc"))},
}

REDUCED_BASE_MODELS = replace(
    REDUCED,
    name="reduced_base_models",
    title="Base models at a CPU budget, and gates on them, Penn Treebank: the same data, updates and seed for all",
    systems={
        **_with_averaged({base: System(flags) for base, flags in _BASE_MODELS.items()}),
        **{
            f"{base}+iog": gate_on(f"{base}-averaged", ON_AWD if base in ("awd", "mos", "doc") else {})
            for base in _BASE_MODELS
        },
        **{f"{base}+iog30": gate_on(f"{base}-averaged", {"gate-dim": 30}) for base in ("zaremba", "variational")},
        **{
            f"{base}+{gate}": gate_on(f"{base}-averaged", {"output-gate": gate})
            for base in ("zaremba", "rhn")
            for gate in ("iog-hidden", "iog-lstm")
        },
        "zaremba3+iog": gate_on("zaremba-averaged", {}, num=3),
    },
    notes="""zaremba, variational (two layers) and rhn (depth 8): a softmax with a matrix of its own. rhn-tied,
mogrifier and awd share the matrix with the embedding. Dropout rates are near those of awd. awd, mos and doc are tied;
mos and doc are those of the recipe reduced. -averaged: one more epoch, of averaged SGD, from a trained system:
--finetune-from-model CKPT.
BASE+iog: a gate of the paper's width, 300, on the averaged model of the base; iog30: of width 30. iog-hidden reads the
hidden state, too, iog-lstm is recurrent; the paper has both on rhn. zaremba3+iog is one gate on three models:
fairseq-plugins run trains them with seeds 1 to 3 for its seed 1, 4 to 6 for its seed 2. Gates on awd, mos and doc have
the clipping and the start that the published program has for AWD-LSTM.""",
)
