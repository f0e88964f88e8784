"""What all pictures share."""

import pytest

from fairseq_plugins.reports.pictures import as_label, new_picture, save_picture


@pytest.mark.parametrize("name", ["$a_b_c$", r"$\a$", "$", "5 $ or 6 $", "a\tb\x07", "DOC, 1", "_a"])
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
