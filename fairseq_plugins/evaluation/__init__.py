"""Measuring trained models.

Four modules score text, and all else but the analyses of experts reads what they give:
:mod:`~fairseq_plugins.evaluation.scored_windows` a split as one stream, with carried state;
:mod:`~fairseq_plugins.evaluation.scored_stream` a stream that comes piece by piece;
:mod:`~fairseq_plugins.evaluation.scored_sequences` sentences, each by itself; and
:mod:`~fairseq_plugins.evaluation.scored_pairs` sentences with their sources.
"""
