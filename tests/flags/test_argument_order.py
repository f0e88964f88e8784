"""Arguments in another order than the host's, put into it."""

import argparse

import pytest

from fairseq_plugins.flags.argument_order import arranged_arguments


class Collects(argparse.Action):
    """An action of a command's own, as ``--path`` has it."""

    def __call__(self, parser, namespace, values, option_string=None):
        raise AssertionError("arguments are placed, not read")


def declare(parser: argparse.ArgumentParser):
    parser.add_argument("data")
    parser.add_argument("--path", nargs="+", required=True, action=Collects)
    parser.add_argument("--rows", type=int, choices=[1, 2])
    parser.add_argument("--split", "--gen-subset", default="test")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument_group("more").add_argument("--more", type=unreadable)
    either = parser.add_mutually_exclusive_group(required=True)
    either.add_argument("--tune", type=unreadable)
    either.add_argument("--weights", type=unreadable)


def unreadable(text):
    raise AssertionError("the places of arguments are no arguments")


def arranged(text, *, former_orders=(), former_flags=(), named_models="off"):
    return arranged_arguments(
        text.split(),
        declare=declare,
        former_flags=dict(former_flags),
        former_orders=former_orders,
        named_models=named_models,
    )


@pytest.mark.parametrize(
    "text",
    [
        "data --path a.pt",
        "data --path a.pt b.pt --rows 2",
        "--rows 2 data --path=a.pt",
        "data --path checkpoint",
        "data",
        "--path a.pt",
        "data --rows -1 --path a.pt",
        "data --unknown a.pt --path b",
        "",
    ],
)
def test_what_stands_right_or_cannot_be_told_is_left(text):
    assert arranged(text) is None


@pytest.mark.parametrize(
    "text, expected",
    [
        ("a.pt data", "data --path a.pt"),
        ("a.pt data --rows 7 --cpu", "data --path a.pt --rows 7 --cpu"),
        ("--cpu a.pt data b.pt", "data --path a.pt b.pt --cpu"),
        ("--path a.pt b.pt data --split a.pt", "data --path a.pt b.pt --split a.pt"),
        ("a.pt --path=b.pt data", "data --path a.pt b.pt"),
        ("a.pt --more 7 data", "data --path a.pt --more 7"),
        ("a.pt --path b.pt --rows 2 --path c.pt data", "data --path a.pt b.pt c.pt --rows 2"),
        ("x=a data x=a", "data --path x=a x=a"),
        ("a.pt data --tune a.pt", "data --path a.pt --tune a.pt"),
        ("a.pt data --tune b --weights c", "data --path a.pt --tune b --weights c"),
    ],
)
def test_checkpoints_are_told_by_their_looks(text, expected):
    assert arranged(text) == expected.split()


def test_a_folder_is_data_whatever_its_name(tmp_path, monkeypatch):
    (tmp_path / "lr=1.pt").mkdir()
    monkeypatch.chdir(tmp_path)
    assert arranged("a.pt lr=1.pt") == ["lr=1.pt", "--path", "a.pt"]


def test_words_stand_for_what_their_number_says():
    order = ("data", "--path", "--gen-subset")
    assert arranged("d c valid", former_orders=[order]) == "d --path c --gen-subset valid".split()
    assert arranged("d c", former_orders=[order]) is None


def test_a_former_flag_is_replaced():
    flags = {"--gpu": ["--device", "cuda"], "--set": ["--split"]}
    for given in ("--set valid", "--set=valid"):
        assert arranged(f"data --path a.pt {given}", former_flags=flags) == "data --path a.pt --split valid".split()


def test_models_take_the_names_of_their_folders():
    assert arranged("x/a.pt y=b.pt d", named_models="on") == ["d", "--path", "x=x/a.pt", "y=b.pt"]


@pytest.mark.parametrize("text", ["data --path -0.5", "--cpu " * 10 + "data --path model", "data more --path a.pt"])
def test_one_value_of_path(text):
    def declare_one(parser: argparse.ArgumentParser):
        parser.add_argument("data")
        parser.add_argument("--path", required=True)
        parser.add_argument("--cpu", action="store_true")

    def read():
        return arranged_arguments(
            text.split(), declare=declare_one, former_flags={}, former_orders=(), named_models="off"
        )

    assert read() is None
