"""Texts of a user's, such as names of models, in reports."""


def printable(text: str) -> str:
    """A text in one line, with a mark in place of each control."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
