"""Preparation of parallel corpora, translations and headlines: raw text, tokens, subwords, the host's binaries."""
