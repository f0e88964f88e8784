"""Raw references and the targets that decoding printed."""

import pytest

from fairseq_plugins.cli.rescore_nbest import RescoreNbest
from fairseq_plugins.evaluation.translation.raw_references import check_raw_references
from fairseq_plugins.scoring.unknown_words import UNKNOWN_REFERENCE


def check(target, reference):
    check_raw_references([target], [reference], name="a", reference_name="b")


@pytest.mark.parametrize(
    "target, reference",
    [
        ("it &apos;s a small house , isn &apos;t it ?", "It's a small house, isn't it?"),
        ("a well @-@ known &quot; R &amp; D &quot; plan", 'A well-known "R&D" plan'),
        ("it costs at AT &amp; amp ; T &amp; lt ; 3 $", "It costs at AT&amp;T &lt; 3$"),  # it has the escapes itself
        ("AT&amp;T rises", "AT&amp;T rises"),  # of no tokeniser
        ("it &apos;s &quot; x &quot;", 'it&apos;s "x"'),
        ("sie wohnt in der STRASSE ##", "Sie wohnt in der Straße 17"),
        ("le chat d &apos; Anne", "le chat d'Anne"),
        ("\u6211 \u7231 \u4f60 \u3002", "\u6211\u7231\u4f60\u3002"),
        (f"the {UNKNOWN_REFERENCE} of {UNKNOWN_REFERENCE} rises", "the price of oil rises"),
        (f"{UNKNOWN_REFERENCE}", "anything at all"),
        (f"{UNKNOWN_REFERENCE} rises , {UNKNOWN_REFERENCE}", "oil rises, again"),
        ("...", "!"),
    ],
)
def test_a_target_is_its_raw_reference_in_other_marks(target, reference):
    check(target, reference)


@pytest.mark.parametrize(
    "target, reference, told",
    [
        ("the price of oil", "the price of gold", "b is not the reference of the text that a was decoded from"),
        ("the price of oil", "the price of oil rises", "its line 1 is 'the price of oil rises', and decoding printed"),
        ("the price", "", "its line 1 is ''"),
        (f"the {UNKNOWN_REFERENCE} of oil", "the price of gold", "is not the reference"),
        (f"the {UNKNOWN_REFERENCE} of {UNKNOWN_REFERENCE} oil", "the oil of price", "is not the reference"),
        (f"abc {UNKNOWN_REFERENCE} cd", "abcd", "is not the reference"),
        ("theprice ofoil", "the price of oil", "the words of target 0, 'theprice ofoil', are joined"),
        ("AT&amp;T risesfast", "AT&amp;T rises fast", "the words of target 0, 'AT&amp;T risesfast', are joined"),
    ],
)
def test_another_line_is_refused(target, reference, told):
    with pytest.raises(ValueError) as error:
        check(target, reference)
    assert told in str(error.value)


def test_the_first_line_that_differs_is_told_in_short():
    lines = ["a b c", "d e f"]
    with pytest.raises(ValueError, match=r"its line 2 is 'x{40} \.\.\.'"):
        check_raw_references(lines, ["a b c", "x" * 1000], name="a", reference_name="b")


@pytest.mark.parametrize(
    "content, flags, told",
    [
        ("another text\n", [], "reference is not the reference of the text that the list was decoded from"),
        ("\n", [], "reference, line 1: blank, nothing could be compared with it"),
        ("xa xb\n", ["--target-lang", "xx"], "--target-lang xx: no language; give its code, such as de"),
    ],
)
def test_lists_refuse_references_of_another_text(content, flags, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reference").write_text(content)
    (tmp_path / "list").write_text("S-0\ta\nT-0\tx@@ a xb\nH-0\t-1\tx@@ a\n")
    (tmp_path / "model.pt").touch()
    arguments = [".", "--path", "model.pt", "--input", "list", "--reference", "reference", "--tune", "weights"]
    with pytest.raises(SystemExit) as end:
        RescoreNbest().main([*arguments, *flags])
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and told in line
