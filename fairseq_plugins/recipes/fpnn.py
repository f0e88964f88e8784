"""Impulse-response and rectifier networks of Pachitariu & Sahani 2013 on Penn Treebank: table 1."""

from fairseq_plugins.recipes.recipe import FULL_SIZE, Recipe, System

_TEST = "test"
_FPNN, _RECTIFIER = {"arch": "fpnn_lm_ptb"}, {"arch": "rectifier_rnn_lm_ptb"}
_FREE = {"dropout-output": 0, "column-norm": 0}

PTB = Recipe(
    name="fpnn_ptb",
    title="Penn Treebank: impulse-response (FPNN) and rectifier networks of Pachitariu & Sahani 2013",
    corpus="bash data-prep/ptb/prepare.sh",
    systems={
        "fpnn": System({**_FPNN, **_FREE}, published={_TEST: "137"}),
        "fpnn+l1": System({**_FPNN, **_FREE, "l1-regularization": 1e-6}, published={_TEST: "125"}),
        "fpnn+dropout+norm": System(_FPNN, published={_TEST: "102"}),
        "rectifier": System({**_RECTIFIER, **_FREE}, published={_TEST: "126"}),
        "rectifier+dropout+norm": System(_RECTIFIER, published={_TEST: "107"}),
    },
    training=FULL_SIZE,
    metric="perplexity",
    notes="""512 hidden units. fpnn, rectifier: nothing is regularised. fpnn+l1: L1 of all matrices.
fpnn+dropout+norm, rectifier+dropout+norm: half of the units are dropped before the softmax, and columns of both word
matrices keep their length. The paper publishes neither optimiser, learning rate, length, strength of L1 nor
schedule; all but the strength were searched on valid (results/fpnn). The recurrent matrix of rectifier networks is 0.01
of its parameters (--recurrent-scale): with Adagrad they diverge without it.""",
)
