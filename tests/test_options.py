"""Values of the command line: lists, rates, positive numbers."""

import errno
import math
import os
import re
from argparse import ArgumentError, ArgumentParser, ArgumentTypeError
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Optional

import numpy as np
import pytest
import torch
from builders import build_tiny_encdec, build_tiny_lm, build_tiny_transformer
from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from omegaconf import OmegaConf

import fairseq_plugins  # noqa: F401  registers all parts
from fairseq_plugins.options import (
    UserError,
    check_at_least_one,
    check_choice,
    check_choices,
    check_dropout,
    check_not_negative,
    check_not_read,
    check_positive,
    choices,
    data_folder,
    named_paths,
    optionally_named_paths,
    output_file,
    output_folder,
    parse_float_list,
    parse_int_list,
    picture_file,
    replaced_file,
    write_tensors,
    write_text,
)

INTS = [("0 0 5 15", [0, 0, 5, 15]), ("0,0,5,15", [0, 0, 5, 15]), (" 7 ", [7]), ("1, 2", [1, 2]), ("-3 4", [-3, 4])]
FLOATS = [("0.9 1 .5", [0.9, 1.0, 0.5]), ("0.9,0.6", [0.9, 0.6]), (" 7 ", [7.0])]


@pytest.mark.parametrize(
    "read, text, expected",
    [*((parse_int_list, *case) for case in INTS), *((parse_float_list, *case) for case in FLOATS)],
)
def test_lists_are_separated_by_spaces_or_commas(read, text, expected):
    assert read(text, flag="--sizes") == expected


NO_INTS = ["", " ", ",", "a", "1 b", "1.5", "1e3", "3-", "-", "--3", "²", "0x10", "None"]
REFUSED = [
    *((parse_int_list, text) for text in NO_INTS),
    *((parse_float_list, text) for text in ("", ",", "a", "0.9 b", "90%", "None")),
    *((check_dropout, rate) for rate in (-0.1, 1.0, 1, math.nan, math.inf)),
    *((check_positive, value) for value in (0, -1, math.nan, math.inf)),
    *((check_not_negative, value) for value in (-1, math.nan, math.inf)),
    *((check_at_least_one, value) for value in (0, 2.0, None, "2")),
    (partial(check_choice, choices=["red", "green"]), "blue"),
]


@pytest.mark.parametrize("check, value", REFUSED)
def test_a_wrong_value_is_refused_with_its_flag(check, value):
    with pytest.raises(UserError, match=r"^--flag "):
        check(value, flag="--flag")


@pytest.mark.parametrize(
    "check, value",
    [
        *((check_dropout, rate) for rate in (0, 0.0, 0.999)),
        *((check_positive, 3), (check_not_negative, 0), (check_at_least_one, np.int64(2))),
        (partial(check_choice, choices=["red", "green"]), "red"),
    ],
)
def test_a_value_is_passed_on(check, value):
    assert check(value, flag="--flag") == value


def test_a_path_may_have_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert optionally_named_paths(["A=a.pt", "A=runs/lr=2.pt"]) == [("A", "a.pt"), ("A", "runs/lr=2.pt")]
    (tmp_path / "lr=20.pt").touch()
    assert optionally_named_paths(["a=a", "b=b.pt"]) == [("a", "a"), ("b", "b.pt")]
    own = ["a.pt", "lr=20.pt", "runs/lr=20/a.pt", "./lr=2.pt", "=a.pt"]
    assert optionally_named_paths(own) == [(path, path) for path in own]


@pytest.mark.parametrize("texts", [["a.pt", "B=b.pt"], ["B=b.pt", "a.pt"], ["a.pt", "a.pt=a.pt"], ["A="]])
def test_paths_of_which_some_have_no_name_or_no_path_are_refused(texts):
    with pytest.raises(UserError, match="^(a.pt|A=): give it as NAME=PATH"):
        optionally_named_paths(texts)


@pytest.mark.parametrize("texts", [["a.pt"], ["=a.pt"], ["A="], ["A=a.pt", "A=b.pt"]])
def test_names_that_are_needed(texts):
    with pytest.raises(UserError, match="NAME"):
        named_paths(texts, repeated_names="refused")
    assert named_paths(["A=a.pt", "A=b=c.pt"]) == [("A", Path("a.pt")), ("A", Path("b=c.pt"))]


Colour = choices(["red", "green"])


@dataclass
class Options(FairseqDataclass):
    colour: Colour = field(default="red", metadata={"help": "of the paint"})
    shade: Optional[Colour] = field(default=None, metadata={"help": "of the shade"})
    width: str = field(default="any", metadata={"help": "no choice"})


def test_a_parsed_value_is_a_string_and_other_words_are_refused():
    parser = ArgumentParser(exit_on_error=False)
    gen_parser_from_dataclass(parser, Options())
    for arguments, colour in (([], "red"), (["--colour", "green"], "green")):
        value = parser.parse_args(arguments).colour
        assert type(value) is str and value == colour
    with pytest.raises(ArgumentError, match="invalid choice: 'blue'"):
        parser.parse_args(["--colour", "blue"])


def test_a_value_of_a_configuration_stands_for_its_string():
    value = OmegaConf.structured(Options(colour=Colour("green"))).colour
    assert value == "green" and str(value) == "green" and f"{value}" == "green"
    assert {"green": 1}[value] == 1


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        Options(colour="green", shade="red", width="blue"),
        Options(colour=Colour("green"), shade=Colour("red")),
    ],
)
def test_words_from_elsewhere_are_checked_and_kept(options):
    kept = (options.colour, options.shade, options.width)
    assert check_choices(options) is options and (options.colour, options.shade, options.width) == kept


@pytest.mark.parametrize("flags", [{"colour": "blue"}, {"colour": True}, {"shade": "re"}])
def test_other_words_from_elsewhere_are_refused(flags):
    ((name, value),) = flags.items()
    with pytest.raises(UserError, match=f"^--{name} {value}: choose one of red, green$"):
        check_choices(Options(**flags))


@pytest.mark.parametrize(
    "build, flags",
    [
        (partial(build_tiny_lm, "full"), {"dropout_masks": "lockd"}),
        (partial(build_tiny_lm, "drill"), {"label_mask": "none"}),
        (partial(build_tiny_lm, "mos", experts_per_layer="0 0 2"), {"latent_mask": "own"}),
        (partial(build_tiny_lm, "full", rnn_cell="mmlstm", major_proportions="0.5 0.5"), {"minor_input": "left"}),
        (partial(build_tiny_encdec, "full"), {"attention": "dots"}),
        (partial(build_tiny_transformer, "transformer_drill"), {"label_residual": "true"}),
    ],
)
def test_models_refuse_words_that_are_no_choices(build, flags):
    ((name, value),) = flags.items()
    with pytest.raises(ValueError, match=f"^--{name.replace('_', '-')} {value}: choose one of "):
        build(**flags)


not_root = pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root")


def test_what_can_be_read_or_written_is_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert output_file("a.txt") == Path("a.txt") and output_folder("new/folder") == Path("new/folder")
    assert data_folder(str(tmp_path)) == output_folder(str(tmp_path)) == tmp_path
    assert output_file(f"{tmp_path}/a.txt") == tmp_path / "a.txt"
    assert picture_file(f"{tmp_path}/a.png") == tmp_path / "a.png"
    assert output_folder(f"{tmp_path}/new/folder") == tmp_path / "new/folder"
    assert list(tmp_path.iterdir()) == []


def test_what_is_read_is_not_written_whatever_it_is_called_and_before_it_is_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text").touch()
    os.link("text", "another")
    for written, read in (("text", "./text"), ("another", "text"), ("later", tmp_path / "later")):
        with pytest.raises(ValueError, match=f"--out {written} is read by this command: give another name"):
            check_not_read(Path(written), [Path("of others"), Path(read)], flag="--out")
    Path("loop").symlink_to("loop")
    check_not_read(Path("new"), [Path("text"), Path("later"), Path("loop")], flag="--out")


@pytest.mark.parametrize(
    "read, name",
    [
        *((data_folder, name) for name in ("nowhere", "file", "")),
        *((output_file, name) for name in ("no/a.txt", ".", "", "${x}")),
        *((picture_file, name) for name in ("a.foo", "no/a.png", "a")),
        *((output_folder, name) for name in ("file/folder", "file")),
        *((output_file, "pipe.png"), (picture_file, "pipe.png")),  # renaming a file would replace a device
    ],
)
def test_paths_that_cannot_be_used_are_refused(read, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    os.mkfifo("pipe.png")
    with pytest.raises(ArgumentTypeError, match=re.escape(name)):
        read(name)


@not_root
def test_a_closed_folder_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    for read, name in ((output_file, "a.txt"), (output_folder, "folder")):
        with pytest.raises(ArgumentTypeError, match="nothing can be written"):
            read(str(tmp_path / name))


def test_a_name_that_is_too_long_is_told_by_the_first_write(tmp_path):
    path = output_file(f"{tmp_path}/{'x' * 300}.txt")
    with pytest.raises(OSError, match="File name too long") as error:
        write_text(path, "a")
    assert error.value.filename == str(path)


def test_a_text_takes_its_name_when_it_is_whole(tmp_path):
    path = tmp_path / "table.md"
    write_text(path, "é\n")
    with replaced_file(path) as aside:
        aside.write_text("new\n")
        assert aside.suffix == ".md" and path.read_text(encoding="utf-8") == "é\n"
    assert path.read_text() == "new\n" and list(tmp_path.iterdir()) == [path]


def test_what_fails_leaves_the_earlier_file_alone(tmp_path):
    path = tmp_path / "table.md"
    path.write_text("earlier\n")
    with pytest.raises(RuntimeError):
        with replaced_file(path) as aside:
            aside.write_text("half")
            raise RuntimeError
    assert path.read_text() == "earlier\n" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("named", ["nothing", "the file beside it", "another"])
def test_a_full_disk_names_the_file(named, tmp_path):
    path, other = tmp_path / "table.md", str(tmp_path / "other")
    with pytest.raises(OSError) as failure:
        with replaced_file(path) as aside:
            name = {"nothing": None, "the file beside it": str(aside), "another": other}[named]
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
    assert failure.value.filename == (other if named == "another" else str(path))


def test_equal_tensors_are_equal_files(tmp_path):
    for name in ("a.pt", "b.pt"):
        write_tensors(tmp_path / name, {"weight": torch.arange(3.0), "updates": 2})
    assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "b.pt").read_bytes()
    assert torch.load(tmp_path / "a.pt")["weight"].tolist() == [0, 1, 2]


def subclasses(cls):
    return {cls}.union(*map(subclasses, cls.__subclasses__()))


OPTIONS = [cls for cls in subclasses(FairseqDataclass) if cls.__module__.startswith("fairseq_plugins.")]
OPTIONS.sort(key=lambda cls: f"{cls.__module__} {cls.__qualname__}")


@pytest.mark.parametrize("options", OPTIONS, ids=lambda cls: f"{cls.__module__} {cls.__qualname__}")
def test_a_told_default_is_the_fields(options):
    for each in fields(options):
        message = re.search(r"\(default: ([^ ,;)]+)", each.metadata.get("help", ""))
        if message and each.default is not None:
            assert message[1] == str(each.default), each.name


def test_defaults_are_told():
    message = [
        field for options in OPTIONS for field in fields(options) if "(default: " in field.metadata.get("help", "")
    ]
    assert len(OPTIONS) > 20 and len(message) > 50
