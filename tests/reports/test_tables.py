"""Tables in Markdown, JSON and pictures as files."""

import json
import math

import pytest

from fairseq_plugins.reports import provenance
from fairseq_plugins.reports.pictures import as_label, new_picture, save_picture
from fairseq_plugins.reports.report import Report, json_text
from fairseq_plugins.reports.tables import Cell, as_table


def cells(line):
    return [cell.strip() for cell in line.strip("|").split(" |")]


def test_names_stand_to_the_left_and_figures_to_the_right_as_they_are():
    title, rule, *rows = as_table(["model", "BLEU"], [("a", "9.00"), ("long name", "10.00")]).splitlines()
    assert title == "| model     |   BLEU |" and rule == "|:----------|-------:|"
    assert rows == ["| a         |   9.00 |", "| long name |  10.00 |"]
    given = [["1e3", "1,000", None, 0.50], ["a\nb", "a|b", 1, 2]]
    *_, first, second = as_table(["a", "b", "c", "d"], given).splitlines()
    assert cells(first) == ["1e3", "1,000", "", "0.5"] and cells(second) == ["a\ufffdb", r"a\|b", "1", "2"]
    assert r"minus a\|b" in as_table(["model", "minus a|b"], [("x", 1)])
    assert str(Cell(1.239)) == "1.24" and str(Cell(1234.6, ",.0f")) == "1,235"
    assert str(Cell(12.0, interval=0.123)) == "12.00 +- 0.12"


FIGURES = {"a": math.inf, "b": [1.5, -math.inf, (math.nan, 2)], "c": {"d": None, "e": True, "f": "ä"}}
READ = {"a": None, "b": [1.5, None, [None, 2]], "c": {"d": None, "e": True, "f": "ä"}}


@pytest.mark.parametrize("options", [{}, dict(indent=2), dict(letters="kept")])
def test_what_is_no_number_is_null(options):
    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    text = json_text(FIGURES, **options)
    assert json.loads(text, parse_constant=refuse) == READ and ("ä" in text) == ("letters" in options)


def test_files_name_their_origin(tmp_path):
    report = Report({"runs": [1]}, "| a |\n", new_picture)
    text = report.write(tmp_path / "new/folder", command="python -m x", name="lm_ptb")
    folder, origin = tmp_path / "new/folder", provenance.origin("python -m x")
    assert (folder / "lm_ptb.md").read_text() == text
    assert text.splitlines()[0] == "| a |"
    assert text.endswith(f"\n\n`python -m x`; {origin['date']}, {origin['code']}; {origin['machine']}.\n")
    figures = json.loads((folder / "lm_ptb.json").read_text())
    assert list(figures.items()) == [*origin.items(), ("runs", [1])]
    assert (folder / "lm_ptb.png").read_bytes().startswith(b"\x89PNG") and len(list(folder.iterdir())) == 3


@pytest.mark.parametrize("names", [{"name": "a"}, {"name": "a", "figures": "b.json"}])
def test_a_second_report_replaces_the_first_and_without_a_picture_there_are_two_files(names, tmp_path):
    for text in ("first", "second"):
        Report({}, text).write(tmp_path, command="x", **names)
    assert (tmp_path / "a.md").read_text().startswith("second\n")
    assert {path.name for path in tmp_path.iterdir()} == {"a.md", names.get("figures", "a.json")}


@pytest.mark.filterwarnings("error")  # letters without a glyph are boxes
@pytest.mark.parametrize("name", ["$a_b_c$", r"$\a$", "$", "5 $ or 6 $", "a\tb\x07", "DOC, 1", "_a", "ไทย 😀"])
def test_any_name_can_be_drawn(name, tmp_path):
    picture = new_picture()
    axes = picture.subplots()
    axes.plot([1, 2], label=as_label(name))
    axes.set_title(as_label(name))
    legend = axes.legend()
    assert [text.get_text() for text in legend.get_texts()] == [as_label(name)]
    save_picture(picture, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 0


def test_a_name_without_such_letters_stays():
    assert as_label("DOC,\u00a0größer") == "DOC,\u00a0größer" and as_label("a\nb") == "a\ufffdb"
