"""Measuring trained models.

Four modules score text, and all else but the analyses of experts reads what they give:
:mod:`~fairseq_plugins.evaluation.scoring` a split as one stream, with carried state;
:mod:`~fairseq_plugins.evaluation.scoring` a stream that comes piece by piece;
:mod:`~fairseq_plugins.evaluation.scoring` sentences, each by itself; and
:mod:`~fairseq_plugins.evaluation.scoring` sentences with their sources.
"""
