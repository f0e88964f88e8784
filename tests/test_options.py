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
    check_at_least_one,
    check_choices,
    check_data_folder,
    check_dropout,
    check_not_negative,
    check_not_read,
    check_positive,
    choices,
    data_folder,
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


Colour = choices(["red", "green"])


@dataclass
class Options(FairseqDataclass):
    colour: Colour = field(default="red", metadata={"help": "of the paint"})
    shade: Optional[Colour] = field(default=None, metadata={"help": "of the shade"})
    width: str = field(default="any", metadata={"help": "no choice"})


@pytest.fixture
def parser():
    parser = ArgumentParser(exit_on_error=False)
    gen_parser_from_dataclass(parser, Options())
    return parser


def test_a_parsed_value_is_a_string(parser):
    for arguments, colour in (([], "red"), (["--colour", "green"], "green")):
        value = parser.parse_args(arguments).colour
        assert type(value) is str and value == colour


def test_other_words_are_refused(parser):
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


@pytest.mark.parametrize(
    "flags, message",
    [
        ({"colour": "blue"}, "^--colour blue: choose one of red, green$"),
        ({"colour": True}, "^--colour True: choose one of red, green$"),
        ({"shade": "re"}, "^--shade re: choose one of red, green$"),
    ],
)
def test_other_words_from_elsewhere_are_refused(flags, message):
    with pytest.raises(ValueError, match=message):
        check_choices(Options(**flags))


@pytest.mark.parametrize(
    "build, flags",
    [
        (partial(build_tiny_lm, "full"), {"output_bias": "no"}),
        (partial(build_tiny_lm, "full"), {"output_loss": "plian"}),
        (partial(build_tiny_lm, "full"), {"dropout_masks": "lockd"}),
        (partial(build_tiny_lm, "full"), {"word_masks": "rows"}),
        (partial(build_tiny_lm, "drill"), {"label_mask": "none"}),
        (partial(build_tiny_lm, "mos", experts_per_layer="0 0 2"), {"latent_mask": "own"}),
        (partial(build_tiny_lm, "full", rnn_cell="mmlstm", major_proportions="0.5 0.5"), {"minor_input": "left"}),
        (partial(build_tiny_lm, "full", rnn_cell="rhn"), {"transform_input": "output"}),
        (partial(build_tiny_encdec, "full"), {"input_feeding": "yes"}),
        (partial(build_tiny_encdec, "full"), {"attention": "dots"}),
        (partial(build_tiny_encdec, "full"), {"share_embeddings": "some"}),
        (partial(build_tiny_encdec, "full"), {"encoder_directions": "left"}),
        (partial(build_tiny_encdec, "full"), {"encoder_merge": "bottom"}),
        (partial(build_tiny_encdec, "full"), {"init": "bylayer"}),
        (partial(build_tiny_transformer, "transformer_drill"), {"label_residual": "true"}),
    ],
)
def test_models_refuse_words_that_are_no_choices(build, flags):
    ((name, value),) = flags.items()
    with pytest.raises(ValueError, match=f"^--{name.replace('_', '-')} {value}: choose one of "):
        build(**flags)


def test_a_folder_is_a_path(tmp_path):
    assert data_folder(str(tmp_path)) == tmp_path


def test_what_is_no_folder_is_refused_with_the_remedy(tmp_path):
    (tmp_path / "text").touch()
    for name, wrong in (("nowhere", "does not exist"), ("text", "is a file")):
        message = f"{tmp_path / name} {wrong}: give the directory that data-prep wrote"
        with pytest.raises(ArgumentTypeError) as refused:
            data_folder(str(tmp_path / name))
        assert str(refused.value) == message
        with pytest.raises(ValueError) as error:
            check_data_folder(tmp_path / name)
        assert str(error.value) == message


not_root = pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root")


def test_what_can_be_written_is_a_path(tmp_path):
    assert output_file(f"{tmp_path}/a.txt") == tmp_path / "a.txt"
    assert picture_file(f"{tmp_path}/a.png") == tmp_path / "a.png"
    assert output_folder(f"{tmp_path}/new/folder") == tmp_path / "new/folder"
    assert output_folder(str(tmp_path)) == tmp_path
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


def test_a_relative_name_stands_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert output_file("a.txt") == Path("a.txt") and output_folder("new/folder") == Path("new/folder")


@pytest.mark.parametrize(
    "read, name, message",
    [
        (output_file, "no/a.txt", "no is no directory: make it first"),
        (output_file, ".", "this is a folder: give the name of a file"),
        (picture_file, "a.foo", "give a name that ends in one of .*png"),
        (picture_file, "no/a.png", "no is no directory: make it first"),
        (output_folder, "file/folder", "file is a file: give a folder"),
    ],
)
def test_what_cannot_be_written_is_refused(read, name, message, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ArgumentTypeError, match=message):
        read(str(tmp_path / name))


@not_root
def test_a_closed_folder_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    for read, name in ((output_file, "a.txt"), (output_folder, "folder")):
        with pytest.raises(ArgumentTypeError, match="nothing can be written"):
            read(str(tmp_path / name))


def test_what_a_file_would_replace_is_refused(tmp_path):
    """Renaming a temporary file would replace a device."""
    os.mkfifo(tmp_path / "pipe.png")
    for read in (output_file, picture_file):
        with pytest.raises(ArgumentTypeError, match="pipe.png: this is a device or a pipe, which a file would replace"):
            read(str(tmp_path / "pipe.png"))


@pytest.mark.parametrize("read", [output_file, picture_file, output_folder])
def test_a_name_that_is_too_long_is_refused(read, tmp_path):
    with pytest.raises(ArgumentTypeError, match=r"nothing can be written there \(File name too long\)"):
        read(str(tmp_path / f"{'x' * 300}.png"))


def test_a_format_that_cannot_be_drawn_here_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ArgumentTypeError, match="a.pgf: no picture of this format can be drawn here .*: take .png"):
        picture_file(str(tmp_path / "a.pgf"))


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
