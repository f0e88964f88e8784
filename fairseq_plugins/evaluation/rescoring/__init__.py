"""Choices among the candidates of a decoder."""
