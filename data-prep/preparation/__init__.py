"""Preparation of corpora: from the files of a corpus to fairseq's binaries, one framework for all."""
