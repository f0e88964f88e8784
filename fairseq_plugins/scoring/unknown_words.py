"""Words that a dictionary lacks, in texts that are compared."""

from fairseq.data import Dictionary

UNKNOWN_REFERENCE = Dictionary().unk_string(escape=True)
"""How the host writes a reference's word that the dictionary lacks; it is no word, but metrics see parts of it."""

NO_HYPOTHESIS_HAS_THIS = "zqxjkvw"
"""Stands for such a word where a metric is computed; as long, so that limits cut the same."""
