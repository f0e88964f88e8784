"""Texts of a user's, such as names of models, in reports."""

import unicodedata


def printable(text: str) -> str:
    """A text in one line, with a mark in place of what cannot be shown; blanks of any kind stay."""
    return "".join(one if one.isprintable() or unicodedata.category(one) == "Zs" else "\ufffd" for one in text)
