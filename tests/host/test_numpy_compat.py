"""What numpy 2 has no more."""

import numpy

from fairseq_plugins.host import numpy_compat


def test_long_is_an_integer(monkeypatch):
    monkeypatch.delattr(numpy, "compat", raising=False)
    numpy_compat.mend()
    assert numpy.zeros(1, dtype=numpy.compat.long).dtype == numpy.int64


def test_what_numpy_has_is_left_alone(monkeypatch):
    monkeypatch.setattr(numpy, "compat", "its own", raising=False)
    numpy_compat.mend()
    assert numpy.compat == "its own"
