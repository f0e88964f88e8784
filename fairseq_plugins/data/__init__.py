"""Corpora as token streams and windows; files of text; tasks as models see them."""
