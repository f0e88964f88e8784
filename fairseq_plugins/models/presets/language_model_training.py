"""Training flags that several families of language models share."""

STREAMS = {
    "task": "stateful_lm",
    "criterion": "regularized_cross_entropy",
    "tokens-per-sample": 70,
    "clip-norm": 0.25,
    "batch-size-valid": 10,
    "distributed-world-size": 1,
}
"""Of every training on contiguous streams."""

SUMMED_STEPS = {**STREAMS, "tokens-per-sample": 35, "batch-size": 20, "sentence-avg": True}
"""Of Zaremba et al. 2014 and those who follow them: a loss is summed over the steps of a window, a mean of its rows."""

AVERAGED = {
    **STREAMS,
    "optimizer": "nt_asgd",
    "window-lengths": "random",
    "activation-regularization": 2.0,
    "temporal-activation-regularization": 1.0,
    "weight-decay": 1.2e-6,
    "nonmonotone-interval": 5,
}
"""Of Merity et al. 2018, whose learning rate, rows and epochs differ by corpus."""

SMALL = {**AVERAGED, "lr": 20, "batch-size": 20, "max-epoch": 6}
"""Of the small architectures: Penn Treebank in an hour of two CPU cores."""
