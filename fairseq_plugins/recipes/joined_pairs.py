"""Small translators on pairs with one dictionary, as many parameters and updates for all."""

from types import MappingProxyType
from typing import Mapping

from fairseq_plugins.models.presets.transformers import SMALL_TRAINING as SMALL_TRANSFORMER_TRAINING
from fairseq_plugins.models.presets.translation_training import ADAM_HALVED
from fairseq_plugins.recipes.recipe import ON_CPUS, Recipe
from fairseq_plugins.recipes.scored_validation import scored_validation
from fairseq_plugins.recipes.system import System

_MIXTURE = {"attention": "dot", "latent-activation": "linear", "latent-dropout": 0.2}
_DOC = {**_MIXTURE, "arch": "lstm_encdec_doc"}
_SYSTEMS = {
    "encdec": System({"arch": "lstm_encdec", "output-layer": "tied"}, label="lstm_encdec, tied softmax"),
    "mos": System({**_MIXTURE, "arch": "lstm_encdec_mos", "hidden-sizes": "251 251"}, label="MoS"),
    "one-expert": System(
        {**_DOC, "experts-per-layer": "0 0 0 1", "hidden-sizes": "254 254"}, label="one expert on the attention"
    ),
    "doc": System({**_DOC, "hidden-sizes": "246 246"}, label="DOC"),
    "doc-drill": System({**_DOC, "hidden-sizes": "240 240", "label-encoder": "drill"}, label="DOC, DRILL's labels"),
    "mmlstm": System(
        {"arch": "mmlstm_encdec", "output-layer": "tied", "hidden-sizes": "298 256"},
        label="Major-Minor LSTM, tied",
    ),
    "mmlstm-doc": System(
        {**_DOC, "arch": "mmlstm_encdec_doc", "hidden-sizes": "264 264"}, label="Major-Minor LSTM, DOC"
    ),
    "encdec+copying": System(
        {"arch": "lstm_encdec", "output-layer": "tied", "copying": "attention"}, label="lstm_encdec, copying"
    ),
    "doc+copying": System({**_DOC, "hidden-sizes": "246 246", "copying": "attention"}, label="DOC, copying"),
}
_UNTIED = {"share-embeddings": "none"}
"""Source, target and output have a matrix each, as in Takase et al. 2018."""
_SYSTEMS |= {
    "encdec+untied": System({**_UNTIED, "arch": "lstm_encdec", "output-layer": "full"}, label="lstm_encdec, untied"),
    **{
        f"{name}+untied": System({**_SYSTEMS[name].flags, **_UNTIED}, label=f"{_SYSTEMS[name].label}, untied")
        for name in ("mos", "one-expert", "doc")
    },
}
_TRAINING = {
    **ON_CPUS,
    **ADAM_HALVED,
    **scored_validation("bleu"),
    "lr": 0.004,
    "share-embeddings": "all",
    "dropout": 0.4,
    "label-smoothing": 0.1,
    "batch-size": 64,
    "force-anneal": 10,
    "max-epoch": 13,
}


_FEW_EPOCHS = {"batch-size": 256, "force-anneal": 3, "max-epoch": 5, "dropout": 0.2}
"""On as many pairs as Tatoeba's, which are shorter."""


def _recipe(
    name: str, title: str, corpus: str, *, training: Mapping[str, float] = MappingProxyType({}), notes: str = ""
) -> Recipe:
    return Recipe(
        name=name,
        title=f"{title}, encoder-decoders with one dictionary: as many parameters and updates for all",
        corpus=f"bash data-prep/{corpus} --joined-dictionary",
        systems=_SYSTEMS,
        training={**_TRAINING, **training},
        training_of_presets="left out",
        compared_by="bleu",
        notes=f"""Embeddings of 256 for source, target and output, layers of about as much. The rate is halved in each
of the last epochs; the log has BLEU of valid, decoded greedily, by epoch. DOC's experts on the LSTM wait for 1,000
updates, which is not in the paper. Made for run_recipe, which compares several seeds. The settings were chosen on
the validation set of Multi30k English-German, most with one seed: results/multi30k.{notes}""",
    )


MULTI30K = _recipe("multi30k_joined", "Multi30k", "multi30k/prepare.sh en-de")
IWSLT14 = _recipe("iwslt14_partial", "A random part of IWSLT 2014", "iwslt14/prepare.sh de-en --partial")
TATOEBA = _recipe(
    "tatoeba",
    "Tatoeba",
    "tatoeba/prepare.sh de-en",
    training=_FEW_EPOCHS,
    notes="""
Here the dropout was chosen on valid (results/tatoeba); batches, which are larger, and epochs, which are fewer, were
not tuned.""",
)
TRANSFORMER = Recipe(
    name="multi30k_joined_transformer",
    title="Multi30k, Transformers with one dictionary: as many parameters as the encoder-decoders of multi30k_joined",
    corpus="bash data-prep/multi30k/prepare.sh en-de --joined-dictionary",
    systems={
        name: System(
            {"arch": f"transformer_{layer}", "encoder-ffn-embed-dim": width, "decoder-ffn-embed-dim": width},
            label=label,
        )
        for name, layer, width, label in (
            ("tied", "full", 381, "Transformer, tied softmax"),
            ("doc", "doc", 295, "Transformer, DOC"),
        )
    },
    training={
        **ON_CPUS,
        **SMALL_TRANSFORMER_TRAINING,
        **scored_validation("bleu"),
        "share-all-embeddings": True,
        "max-epoch": 60,
        "patience": 5,
    },
    training_of_presets="left out",
    compared_by="bleu",
    notes="""Three layers of 256 on either side; the feed-forward layers take what is left. Training ends after five
epochs in which valid has not improved. Made for run_recipe; compare_runs sets both recipes side by side.""",
)
