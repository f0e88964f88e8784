"""Tables in Markdown that are read back."""

from typing import List


def rows_of(table: str) -> List[List[str]]:
    """The cells of each line: those of the title, the rule below it, and the rows."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
