"""Headlines of AG News and Reuters-21578 at a CPU budget."""

from fairseq_plugins.recipes.recipe import ON_CPUS, Recipe
from fairseq_plugins.recipes.scored_validation import scored_validation
from fairseq_plugins.recipes.system import System

_WITHOUT_COPYING = {
    "encdec": System({"arch": "lstm_encdec", "output-layer": "tied"}, label="lstm_encdec, tied softmax"),
    "mos": System({"arch": "lstm_encdec_mos", "latent-dropout": 0.4}, label="MoS"),
    "doc": System({"arch": "lstm_encdec_doc", "latent-dropout": 0.4}, label="DOC"),
}
_SYSTEMS = {
    **_WITHOUT_COPYING,
    **{
        f"{name}+copying": System({**system.flags, "copying": "attention"}, label=f"{system.label}, copying")
        for name, system in _WITHOUT_COPYING.items()
    },
}
_TRAINING = {
    **ON_CPUS,
    **scored_validation("rouge1"),
    "share-embeddings": "all",
    "attention": "general",  # that of the results; the small architectures have another since
    "embed-dim": 128,
    "hidden-sizes": "128 128",
    "init-range": 0.2,
    "dropout": 0.5,
    "batch-size": 32,
    "max-epoch": 14,
    "lr": 0.003,
    "force-anneal": 11,
}
_NOTES = """The models are small, much is dropped, and one embedding serves source, target and output, so that names can
be copied; the systems with copying can point at them. The architecture of doc brings --expert-warmup 1000, which is not
in the paper.
Results, beside baselines without a model: results/{name}/README.md."""

AGNEWS = Recipe(
    name="agnews",
    title="Headlines of AG News at a CPU budget: the same data, subwords, updates, widths and optimiser for all",
    corpus="bash data-prep/agnews/prepare.sh --joined-dictionary",
    systems=_SYSTEMS,
    training=_TRAINING,
    compared_by="rouge",
    notes=_NOTES.format(name="agnews"),
)

REUTERS = Recipe(
    name="reuters21578",
    title="Headlines of Reuters-21578 at a CPU budget: the same data, subwords, updates, widths and optimiser for all",
    corpus="bash data-prep/reuters21578/prepare.sh --joined-dictionary",
    systems=_SYSTEMS,
    training={**_TRAINING, "max-epoch": 8, "force-anneal": 5},
    compared_by="rouge",
    notes=_NOTES.format(name="reuters21578"),
)
