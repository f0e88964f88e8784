"""Commands of the console script ``fairseq-plugins``."""
