"""Measuring and using trained models.

=============================  =========================================================================================
``checkpoints``                loads models, of language or translation
``scoring``                    NLL of tokens: of a stream, of separate sequences, of pairs; most others read its results
``test_time``                  methods that change how a stream is scored: caches, n-grams, dropout, temperature
``dynamic_evaluation``         one more of them: weights that follow the stream
``evaluator``                  perplexity of a split with these methods, and their grid search
``tokenizers``, ``raw_text``   lines of raw text as words, as pieces of words and as numbers, and back
``language_model``             ``TrainedLanguageModel`` of raw text, with ``generation``: sampling and beam search
``translation``                ``Translator`` of raw text
``api``                        ``fairseq_plugins.load``, which returns one of these two
``decoding``                   runs ``fairseq-generate`` on a split, and reads its output
``translation_scores``         that output or other text beside raw references: checks, BLEU and chrF
``rescoring``                  n-best lists, whose candidates are scored by several models
``analyses``                   what experts, layers, words and gates do
``average``, ``export``        write checkpoints, ``export`` with what they need, also as ``programs`` of torch alone
=============================  =========================================================================================
"""
