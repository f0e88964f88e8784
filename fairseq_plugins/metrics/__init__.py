"""ROUGE, BLEU and chrF of a corpus."""
