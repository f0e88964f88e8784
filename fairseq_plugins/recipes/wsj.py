"""Language models that rerank parses of the Wall Street Journal: table 11 of Takase et al. 2018, and a sample."""

from fairseq_plugins.recipes.recipe import FULL_SIZE, Recipe
from fairseq_plugins.recipes.system import System

_SINGLE, _ENSEMBLE = "reranked", "five together"
_DROPOUT = {
    "dropout-embedding": 0.1,
    "dropout-input": 0.4,
    "dropout-hidden": 0.225,
    "dropout-output": 0.4,
    "dropout-weight": 0.5,
}
_MIXTURE = {**_DROPOUT, "latent-dropout": 0.29, "embed-dim": 140, "hidden-sizes": "463 463 280"}

WSJ = Recipe(
    name="wsj",
    title="Parse reranking: language models of trees with the settings for Penn Treebank, Takase et al. 2018, table 11",
    corpus="bash data-prep/wsj/prepare.sh --from DIR",
    systems={
        "awd": System({"arch": "lstm_lm_awd_ptb"}, published={_SINGLE: "93.2", _ENSEMBLE: "93.4"}),
        "mos": System({"arch": "lstm_lm_mos_ptb"}, published={_SINGLE: "93.2", _ENSEMBLE: "93.4"}),
        "doc": System({"arch": "lstm_lm_doc_ptb"}, published={_SINGLE: "93.3", _ENSEMBLE: "93.5"}),
    },
    training=FULL_SIZE,
    metric="F1 on section 23, of candidates whose first has 89.7",
    notes="""The model with the lowest validation loss reranks: python -m fairseq_plugins.cli.rerank_trees. Train the
members of an ensemble with different --seed. The paper does not tell whether an ensemble sums log-probabilities or
averages probabilities (--ensemble sum or mean), nor whether state is carried from candidate to candidate; here each
starts afresh.""",
)

SAMPLE = Recipe(
    name="wsj_sample",
    title="Parse reranking on a sample of 3,253 trees at a CPU budget: the same data, rates and dropout for all",
    corpus="bash data-prep/wsj/prepare.sh --from DIR",
    systems={
        "awd": System({"arch": "lstm_lm_awd", **_DROPOUT, "embed-dim": 200, "hidden-sizes": "485 485 200"}),
        "mos": System({"arch": "lstm_lm_mos", **_MIXTURE, "experts-per-layer": "0 0 0 4"}),
        "doc": System({"arch": "lstm_lm_doc", **_MIXTURE, "experts-per-layer": "0 0 1 3"}),
    },
    training={"max-epoch": 300, "patience": 15},
    notes="""All have about 4.0M parameters and the dropout rates of MoS for Penn Treebank, because there are about as
many parameters to a symbol of the training text as there. Training ends when the validation loss has not improved for
15 epochs. checkpoint_best.pt reranks: python -m fairseq_plugins.cli.rerank_trees.""",
)
