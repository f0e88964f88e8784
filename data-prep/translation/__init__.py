"""Preparation of parallel corpora: raw text -> tokens -> subwords -> binaries of the host."""
