"""Metrics of texts, and the host's scorers built on them."""
