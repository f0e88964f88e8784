"""Measuring trained models.

:mod:`~fairseq_plugins.evaluation.scoring` computes log-probabilities: of a split as one stream, of a stream that comes
piece by piece, of separate sentences, and of sentences with their sources. Everything else reads its results.
"""
