"""Dictionaries for tests."""

from fairseq.data import Dictionary


def make_dictionary(size: int) -> Dictionary:
    """A dictionary of ``size`` symbols, the host's four included."""
    dictionary = Dictionary()
    for i in range(size - len(dictionary)):
        dictionary.add_symbol(f"w{i}")
    assert len(dictionary) == size
    return dictionary
