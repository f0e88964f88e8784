"""The trainings of ``scripts/demo.sh``: short sentences of Tatoeba, one to two minutes a system on a CPU core."""

from fairseq_plugins.recipes.recipe import ON_CPUS, Recipe
from fairseq_plugins.recipes.system import System

_CORPUS = "bash data-prep/tatoeba/prepare.sh {} --from fairseq_plugins/demo_corpus"
_TRAINING = {**ON_CPUS, "criterion": "regularized_cross_entropy", "log-interval": 25, "seed": 1}
_LM_EPOCHS = 10
_TRANSLATION_EPOCHS = 6

LANGUAGE_MODELS = Recipe(
    name="demo_lm",
    title="The demo's language models: a tied softmax and DOC on the English side of short sentences",
    corpus=_CORPUS.format("en"),
    systems={
        "lstm_lm_awd": System({"arch": "lstm_lm_awd", "hidden-sizes": "256 256 128"}, label="AWD-LSTM, tied softmax"),
        "lstm_lm_doc": System(
            {
                "arch": "lstm_lm_doc",
                "hidden-sizes": "244 244 128",
                "experts-per-layer": "0 0 1 3",
                "balance": 0.001,
            },
            label="AWD-LSTM-DOC",
        ),
    },
    training={
        **_TRAINING,
        "task": "stateful_lm",
        "tokens-per-sample": 35,
        "batch-size": 20,
        "batch-size-valid": 10,
        "embed-dim": 128,
        "activation-regularization": 2,
        "temporal-activation-regularization": 1,
        "optimizer": "nt_asgd",
        "lr": 20,
        "clip-norm": 0.25,
        "max-epoch": _LM_EPOCHS,
        "force-anneal": _LM_EPOCHS - 2,
        "lr-shrink": 0.3,
    },
    training_of_presets="left out",
    notes="""Both have 1.2M parameters. The rate falls for the last two epochs. Results: results/demo/table.md.""",
)

TRANSLATORS = Recipe(
    name="demo_translation",
    title="The demo's translators: one softmax and DOC on short sentences, German to English",
    corpus=_CORPUS.format("de-en") + " --merges 1500",
    systems={
        "lstm_encdec": System({"arch": "lstm_encdec"}),
        "lstm_encdec_doc": System({"arch": "lstm_encdec_doc", "experts-per-layer": "0 2 2", "expert-warmup": 300}),
    },
    training={
        **_TRAINING,
        "task": "translation",
        "embed-dim": 128,
        "hidden-sizes": 160,
        "attention": "general",
        "init-range": 0.2,
        "dropout": 0.3,
        "batch-size": 64,
        "optimizer": "adam",
        "lr": 0.004,
        "clip-norm": 5,
        "lr-scheduler": "fixed",
        "max-epoch": _TRANSLATION_EPOCHS,
        "force-anneal": _TRANSLATION_EPOCHS - 1,
        "lr-shrink": 0.5,
    },
    training_of_presets="left out",
    compared_by="bleu",
    notes="""One layer of width 160. The rate falls for the last epoch. The warm-up of the experts is not in the
paper. Results: results/demo/translation.md.""",
)
