"""Tables of the papers as cases of tests, and sizes of their vocabularies."""

import pytest

PTB, WT2, WT103 = 10_000, 33_278, 267_735


def cells(table, columns):
    """A case for each cell of a table with a row a flag: architecture, flag, value."""
    return [
        pytest.param(f"lstm_lm_{column}", name, row[i], id=f"{column}-{name}")
        for name, row in table.items()
        for i, column in enumerate(columns)
    ]
