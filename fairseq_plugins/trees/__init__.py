"""Constituency trees: reading, cleaning, linearisation, n-best lists of parsers, bracket scores and reranking."""
