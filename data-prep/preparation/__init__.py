"""Preparation of corpora: from the files of a corpus to the host's binaries, one framework for all."""
