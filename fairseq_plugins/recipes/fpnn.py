"""Impulse-response and rectifier networks of Pachitariu & Sahani 2013: tables 1 (Penn Treebank) and 2 (text8)."""

from fairseq_plugins.recipes.recipe import FULL_SIZE, Recipe
from fairseq_plugins.recipes.system import System

_TEST = "test"
_FPNN, _RECTIFIER = {"arch": "fpnn_lm_ptb"}, {"arch": "rectifier_rnn_lm_ptb"}
_FREE = {"dropout-output": 0, "column-norm": 0}
_DAMPED = {"optimizer": "damped_adagrad", "initial-accumulator": 1e-5, "lr": 0.1}
_DAMPED_RECTIFIER = {**_DAMPED, "initial-accumulator": 1e-7, "recurrent-scale": 0.1}
_SHORT, _LONG = {"force-anneal": 3, "max-epoch": 5}, {"force-anneal": 12, "max-epoch": 14}

PTB = Recipe(
    name="fpnn_ptb",
    title="Penn Treebank: impulse-response (FPNN) and rectifier networks of Pachitariu & Sahani 2013",
    corpus="bash data-prep/ptb/prepare.sh",
    systems={
        "fpnn": System({**_FPNN, **_FREE}, published={_TEST: "137"}),
        "fpnn+l1": System({**_FPNN, **_FREE, "l1-regularization": 1e-6}, published={_TEST: "125"}),
        "fpnn+dropout+norm": System(_FPNN, published={_TEST: "102"}),
        "fpnn+dropout+norm+damped": System({**_FPNN, **_DAMPED, **_LONG}, published={_TEST: "102"}),
        "rectifier": System({**_RECTIFIER, **_FREE}, published={_TEST: "126"}),
        "rectifier+damped": System({**_RECTIFIER, **_FREE, **_DAMPED_RECTIFIER, **_SHORT}, published={_TEST: "126"}),
        "rectifier+dropout+norm": System(_RECTIFIER, published={_TEST: "107"}),
        "rectifier+dropout+norm+damped": System({**_RECTIFIER, **_DAMPED_RECTIFIER, **_LONG}, published={_TEST: "107"}),
    },
    training=FULL_SIZE,
    metric="perplexity",
    notes="""512 hidden units. fpnn, rectifier: nothing is regularised. fpnn+l1: L1 of all matrices. fpnn+dropout+norm,
rectifier+dropout+norm: half of the units are dropped before the softmax, and columns of both word matrices keep their
length. +damped: the sums of Adagrad start above zero, by which rare words move in short steps; more epochs. The paper
publishes neither optimiser, learning rate, length, strength of L1 nor schedule; length, optimiser and rate were
searched on valid (results/fpnn). Published of fpnn+dropout+norm, by evaluate_lm: with 5-grams and cache 94, of ten
copies 98.8 and 92.5; dynamic 98.4, 90.7, 95.1 and 89.1. The recurrent matrix of rectifier networks is 0.01 of its
parameters (--recurrent-scale), 0.1 with +damped: with Adagrad they diverge at 1.""",
)

_NOISE = {"criterion": "noise_contrastive", "noise-samples": 25, "accidental-hits": "counted"}
_FPNN_WORDS, _RECTIFIER_WORDS = {"arch": "fpnn_lm_text8_words"}, {"arch": "rectifier_rnn_lm_text8_words"}

TEXT8_WORDS = Recipe(
    name="fpnn_text8",
    title="text8 by words: FPNN and rectifier networks of Pachitariu & Sahani 2013",
    corpus="bash data-prep/text8/prepare.sh",
    systems={
        "fpnn+nce": System({**_FPNN_WORDS, **_NOISE}, published={_TEST: "197"}),
        "rectifier+nce": System({**_RECTIFIER_WORDS, **_NOISE}, published={_TEST: "191"}),
        "rectifier+damped+nce": System({**_RECTIFIER_WORDS, **_NOISE, **_DAMPED_RECTIFIER}, published={_TEST: "191"}),
        "fpnn": System(_FPNN_WORDS),
        "rectifier": System(_RECTIFIER_WORDS),
        "rectifier+damped": System({**_RECTIFIER_WORDS, **_DAMPED_RECTIFIER}),
    },
    training=FULL_SIZE,
    metric="perplexity",
    notes="""512 hidden units, nothing is regularised. +nce: noise-contrastive estimation, as published; the others
learn by maximum likelihood. Both networks together (published: 168): python -m fairseq_plugins.cli.evaluate_lm DATA
--path FPNN RECTIFIER. The paper publishes neither optimiser, learning rate, number of noise words nor schedule, and
those here were not searched but for +damped, which is that of Penn Treebank (results/fpnn).""",
)

_FPNN_CHARACTERS = {"arch": "fpnn_lm_text8_chars"}
_SMOOTH, _SKIPPING = {"arch": "rectifier_rnn_lm_text8_chars"}, {"arch": "skipping_rnn_lm_text8_chars"}
_DAMPED_CHARACTERS = {**_DAMPED, "initial-accumulator": 1e-7, "lr": 0.03, "recurrent-scale": 0.2}

TEXT8_CHARACTERS = Recipe(
    name="fpnn_text8_chars",
    title="text8 by characters: FPNN, smooth rectifier and skipping networks of Pachitariu & Sahani 2013",
    corpus="bash data-prep/text8/prepare.sh --level char",
    systems={
        "fpnn+hidden": System(_FPNN_CHARACTERS, published={_TEST: "2.12"}),
        "fpnn+hidden+damped": System(
            {**_FPNN_CHARACTERS, **_DAMPED, "initial-accumulator": 1e-7, "lr": 0.015}, published={_TEST: "2.12"}
        ),
        "smooth-rectifier": System(_SMOOTH, published={_TEST: "1.55"}),
        "smooth-rectifier+damped": System({**_SMOOTH, **_DAMPED_CHARACTERS}, published={_TEST: "1.55"}),
        "skipping": System(_SKIPPING, published={_TEST: "1.48"}),
        "skipping+damped": System({**_SKIPPING, **_DAMPED_CHARACTERS}, published={_TEST: "1.48"}),
    },
    training=FULL_SIZE,
    metric="bits a character",
    notes="""2,048 hidden units; fpnn+hidden has a layer of rectifiers before the softmax. Bits are the mean
over characters and the end marks, one every 1,000 characters. No clipping, as published, but Adagrad in place of SGD
with momentum near 1, by which smooth rectifiers do not leave their start here (results/text8). +damped: its sums start
at 1e-7, and the recurrent matrix is 0.2 of its parameters, not 0.01; rate and scale were chosen from the first 50
updates. Other rates, the numbers of rows and epochs and the a of the smooth rectifier are not published, and those here
were not searched.""",
)
