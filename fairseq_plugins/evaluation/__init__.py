"""Measuring and using trained models.

=============================  =========================================================================================
``checkpoints``                loads models, of language or translation
``scoring``                    NLL of the tokens of a stream, of separate sequences or of pairs; most others use it
``methods``                    test-time methods that change how a stream is scored: caches, n-grams, dropout samples
``dynamic_evaluation``         another such method: weights that adapt to the stream
``evaluator``                  perplexity of a split with these methods, and their grid search
``tokenizers``, ``raw_text``   lines of raw text as words, as pieces of words and as numbers, and back
``language_model``             ``TrainedLanguageModel`` of raw text, with ``generation``: sampling and beam search
``translation``                ``Translator`` of raw text
``api``                        ``fairseq_plugins.load``, which returns a ``TrainedLanguageModel`` or a ``Translator``
``decoding``                   runs ``fairseq-generate`` on a split
``nbest``                      reads and writes n-best lists, such as its output
``translation_scores``         BLEU and chrF of this output, or of other text, against checked raw references
``rescoring``                  scores the candidates of n-best lists by several models
``analyses``                   what experts, layers, words and gates do
``average``, ``export``        write checkpoints; ``export`` adds all that they need, and ``programs`` for torch alone
=============================  =========================================================================================
"""
