"""``numpy.compat.long`` exists.

Mends: numpy 2 has no ``numpy.compat``, and the host's data sets still ask for its ``long``.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3, with numpy 2 and later.
Needed as long as ``grep -r np.compat`` finds anything in the installed fairseq, and numpy itself has none.
"""

from types import SimpleNamespace

import numpy


def mend() -> None:
    """Give numpy what it had, if it is missing."""
    if not hasattr(numpy, "compat"):
        numpy.compat = SimpleNamespace(long=int)  # pyrefly: ignore[missing-attribute]
