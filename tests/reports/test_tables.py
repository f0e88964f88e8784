"""Tables in Markdown."""

from fairseq_plugins.reports.tables import Cell, as_table


def cells(line):
    return [cell.strip() for cell in line.strip("|").split(" |")]


def test_names_stand_to_the_left_and_figures_to_the_right():
    title, rule, *rows = as_table(["model", "BLEU"], [("a", "9.00"), ("long name", "10.00")]).splitlines()
    assert title == "| model     |   BLEU |" and rule == "|:----------|-------:|"
    assert rows == ["| a         |   9.00 |", "| long name |  10.00 |"]


def test_cells_are_written_as_they_are():
    *_, row = as_table(["a", "b", "c", "d"], [["1e3", "1,000", None, 0.50]]).splitlines()
    assert cells(row) == ["1e3", "1,000", "", "0.5"]


def test_a_bar_in_a_name_does_not_part_cells():
    assert r"a\|b" in as_table(["model", "x"], [("a|b", 1)])
    assert r"minus a\|b" in as_table(["model", "minus a|b"], [("x", 1)])


def test_a_name_of_two_lines_makes_one_row():
    _, _, row = as_table(["model", "x"], [("a\nb", 1)]).splitlines()
    assert cells(row) == ["a\ufffdb", "1"]


def test_a_cell_shows_its_interval_where_it_has_one():
    assert str(Cell(1.239)) == "1.24" and str(Cell(1234.6, ",.0f")) == "1,235"
    assert str(Cell(12.0, interval=0.123)) == "12.00 +- 0.12"
