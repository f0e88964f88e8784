import pytest
from fairseq.data import Dictionary


@pytest.fixture
def make_dictionary():
    """``make_dictionary(size)``: a dictionary of w0, w1 ... and the host's four symbols."""

    def make(size):
        dictionary = Dictionary()
        for number in range(size - len(dictionary)):
            dictionary.add_symbol(f"w{number}")
        return dictionary

    return make
