"""Corpora as token streams and windows."""
