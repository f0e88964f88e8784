"""Training flags that several families of encoder-decoders share."""

TRANSLATION = {"task": "translation", "criterion": "regularized_cross_entropy", "distributed-world-size": 1}
"""Of every training on pairs of lines."""

ADAM_HALVED = {
    **TRANSLATION,
    "optimizer": "adam",
    "lr": 0.001,
    "clip-norm": 5,
    "lr-scheduler": "fixed",
    "lr-shrink": 0.5,
}
"""Adam at a rate that is halved every epoch from ``force-anneal`` on (Takase et al. 2018)."""
