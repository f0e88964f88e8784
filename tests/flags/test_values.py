"""Values of the command line: lists, rates, positive numbers."""

import math

import numpy as np
import pytest

from fairseq_plugins.flags.values import (
    check_at_least_one,
    check_dropout,
    check_not_negative,
    check_positive,
    optionally_named_paths,
    parse_float_list,
    parse_int_list,
)


@pytest.mark.parametrize(
    "text, expected",
    [("0 0 5 15", [0, 0, 5, 15]), ("0,0,5,15", [0, 0, 5, 15]), (" 7 ", [7]), ("1, 2", [1, 2]), ("-3 4", [-3, 4])],
)
def test_lists_are_separated_by_spaces_or_commas(text, expected):
    assert parse_int_list(text, flag="--sizes") == expected


@pytest.mark.parametrize("text", ["", " ", ",", "a", "1 b", "1.5", "1e3", "3-", "-", "--3", "²", "0x10", "None"])
def test_what_is_no_whole_number_is_refused_with_the_flag(text):
    with pytest.raises(ValueError, match="--sizes"):
        parse_int_list(text, flag="--sizes")
    with pytest.raises(ValueError, match='for example --sizes "0 1 3"$'):
        parse_int_list(text, flag="--sizes", example="0 1 3")


@pytest.mark.parametrize("text, expected", [("0.9 1 .5", [0.9, 1.0, 0.5]), ("0.9,0.6", [0.9, 0.6]), (" 7 ", [7.0])])
def test_lists_of_numbers_are_separated_by_spaces_or_commas(text, expected):
    assert parse_float_list(text, flag="--shares") == expected


@pytest.mark.parametrize("text", ["", " ", ",", "a", "0.9 b", "90%", "None"])
def test_what_is_no_number_is_refused_with_the_flag(text):
    with pytest.raises(ValueError, match="--shares"):
        parse_float_list(text, flag="--shares")


@pytest.mark.parametrize("rate", [0, 0.0, 0.5, 0.999])
def test_a_dropout_rate_is_passed_on(rate):
    assert check_dropout(rate, flag="--dropout") == rate


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1, 1.5, math.nan, math.inf, -math.inf])
def test_what_is_no_dropout_rate_is_refused_with_the_flag(rate):
    with pytest.raises(ValueError, match=r"--dropout .*0 <= rate < 1"):
        check_dropout(rate, flag="--dropout")


def test_a_positive_value_is_passed_on():
    assert check_positive(3, flag="--width") == 3


@pytest.mark.parametrize("value", [0, -1, math.nan])
def test_a_value_that_is_not_positive_is_refused_with_the_flag(value):
    with pytest.raises(ValueError, match="--width"):
        check_positive(value, flag="--width")


@pytest.mark.parametrize("check", [check_not_negative, check_positive])
def test_an_infinite_value_is_refused_with_the_flag(check):
    with pytest.raises(ValueError, match="^--width inf: give a finite value$"):
        check(math.inf, flag="--width")


@pytest.mark.parametrize("value", [2.0, 1.5, None, "2"])
def test_a_count_that_is_no_whole_number_is_refused(value):
    with pytest.raises(ValueError, match=f"^--rows {value}: give a whole number$"):
        check_at_least_one(value, flag="--rows")
    assert check_at_least_one(np.int64(2), flag="--rows") == 2


def test_a_path_may_have_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert optionally_named_paths(["A=a.pt", "A=runs/lr=2.pt"]) == [("A", "a.pt"), ("A", "runs/lr=2.pt")]
    (tmp_path / "lr=20.pt").touch()
    assert optionally_named_paths(["a=a", "b=b.pt"]) == [("a", "a"), ("b", "b.pt")]
    own = ["a.pt", "lr=20.pt", "runs/lr=20/a.pt", "./lr=2.pt", "=a.pt"]
    assert optionally_named_paths(own) == [(path, path) for path in own]


@pytest.mark.parametrize("texts", [["a.pt", "B=b.pt"], ["B=b.pt", "a.pt"], ["a.pt", "a.pt=a.pt"]])
def test_paths_with_a_name_beside_others_are_refused(texts):
    with pytest.raises(ValueError, match="^a.pt: give it as NAME=PATH as the others, .*, or give none a NAME$"):
        optionally_named_paths(texts)


def test_a_name_without_a_path_is_refused():
    with pytest.raises(ValueError, match="^A=: give it as NAME=PATH$"):
        optionally_named_paths(["A="])
