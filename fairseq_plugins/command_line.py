"""Arguments that several commands share."""

import argparse
from typing import Any, List, Optional

import torch

from fairseq_plugins.files import (
    EXPORT_RECORD,
    checkpoints_of,
    data_folder,
    given_path,
    listed_paths,
    output_file,
    output_folder,
    picture_file,
)
from fairseq_plugins.options import UserError, count, split_name, whole_number
from fairseq_plugins.output_layers.base import OUTPUT_PRECISIONS


class Checkpoints(argparse.Action):
    """Collects the paths of ``A.pt B.pt``, and of ``A.pt:B.pt`` as fairseq writes ensembles, in one list.

    It replaces the folder of a run by its checkpoint, and an export by its checkpoints. NAME=PATH is one checkpoint. A
    repeated flag adds to the list, as with the action ``extend``.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: Optional[str] = None,
    ) -> None:
        listed: List[str] = [path for text in values for path in listed_paths(text)]
        if not all(listed):
            raise argparse.ArgumentError(self, f"{' '.join(values)}: a path is empty")
        paths: List[str] = list(getattr(namespace, self.dest) or [])
        for path in listed:
            paths += [checkpoint(path)] if split_name(path)[0] else map(str, checkpoints_of(given_path(path)))
        setattr(namespace, self.dest, paths)


def _model(text: str) -> str:
    """Return a value of ``--path``. The flag takes all words behind it, even DATA if DATA does not come first."""
    path = given_path(split_name(text)[1] or text)
    is_export = (path / EXPORT_RECORD).is_file()
    if any(path.glob("dict*.txt")) and not is_export and not any(path.glob("*.pt")):
        raise UserError(f"{text} is no model: give DATA first, before --path")
    return text


def checkpoint(text: str) -> str:
    """Return a value of ``--path``, PATH or NAME=PATH, in which the folder of a run becomes its checkpoint."""
    name, path = split_name(text)
    found = checkpoints_of(given_path(path)) if path or not name else [""]
    if len(found) > 1:
        raise UserError(f"{path} holds {len(found)} models: name one of its files")
    return f"{name}={found[0]}" if name else str(found[0])


def add_data(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Declare DATA, ``args.data``: the path of a folder that exists, or None if it is not required."""
    parser.add_argument(
        "data",
        metavar="DATA",
        type=data_folder,
        nargs=None if required else "?",
        help="directory that data-prep wrote",
    )


RUN_FOLDER_HELP = "; the folder of a run stands for its checkpoint_best.pt, or else checkpoint_last.pt"
"""End of the help of arguments that are checkpoints."""


def add_checkpoints(
    parser: argparse.ArgumentParser, *, help: str, required: bool = True, metavar: str = "CKPT"
) -> None:
    """Declare ``--path CKPT...`` or ``--path NAME=CKPT...``, ``args.path``: texts, which ``named_paths`` splits.

    Paths joined by colons are split, unless a file has the whole name. The folder of a run becomes its checkpoint.
    """
    parser.add_argument(
        "--path",
        nargs="+",
        type=_model,
        required=required,
        metavar=metavar,
        action=Checkpoints,
        help=help + RUN_FOLDER_HELP,
    )


def add_trained_model(parser: argparse.ArgumentParser, *, metavar: str, help: str, default_data: str) -> None:
    """Declare ``CKPT...``, ``args.path``: as :func:`add_checkpoints`, and ``--data``, a folder or None."""
    parser.add_argument("path", nargs="+", metavar=metavar, action=Checkpoints, help=help + RUN_FOLDER_HELP)
    parser.add_argument(
        "--data",
        type=data_folder,
        metavar="DATA",
        help=f"directory that data-prep wrote (default: {default_data})",
    )


def add_folders(parser: argparse.ArgumentParser, *, help: str, metavar: str = "NAME=SAVE_DIR") -> None:
    """Declare ``--path NAME=SAVE_DIR...``, ``args.path``: texts, such as for ``named_paths``."""
    parser.add_argument("--path", nargs="+", type=_model, action="extend", required=True, metavar=metavar, help=help)


def add_split(parser: argparse.ArgumentParser, *, help: str = "split to score", default: str = "test") -> None:
    """Declare ``--split`` and, as fairseq calls it, ``--gen-subset``; ``args.split``."""
    parser.add_argument(
        "--split", "--gen-subset", default=default, metavar="SPLIT", help=f"{help} (default: %(default)s)"
    )


def add_input(parser: argparse.ArgumentParser, *, help: str) -> None:
    """Declare ``--input FILE...``, ``args.input``: a list of paths, or None; ``-`` is the standard input."""
    parser.add_argument("--input", nargs="+", action="extend", type=given_path, metavar="FILE", help=help)


def add_tokenised(parser: argparse.ArgumentParser) -> None:
    """Declare ``--tokenised``."""
    parser.add_argument(
        "--tokenised",
        action="store_true",
        help="the text is not raw: it has the words and subwords that the model was trained on, separated by blanks",
    )


def add_beam(parser: argparse.ArgumentParser) -> None:
    """Declare ``--beam``, ``args.beam``."""
    parser.add_argument("--beam", type=count, default=5, metavar="N", help="beam size (default: %(default)s)")


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Declare ``--temperature``, ``--top-k``, ``--top-p`` and ``--seed``, also as fairseq calls them."""
    parser.add_argument(
        "--temperature", type=float, default=1.0, help="divides log-probabilities before words are drawn (default: 1)"
    )
    parser.add_argument(
        "--top-k", "--sampling-topk", type=count, metavar="K", help="draw from the K most probable words (default: all)"
    )
    parser.add_argument(
        "--top-p",
        "--sampling-topp",
        type=float,
        metavar="P",
        help="draw from the fewest words whose probabilities sum to P (default: all)",
    )
    parser.add_argument(
        "--seed", type=whole_number(at_least=0), help="seed of the draws; equal seeds draw equal texts (default: 1)"
    )


def add_output_precision(parser: argparse.ArgumentParser) -> None:
    """Declare ``--output-precision``, ``args.output_precision``, of scores of trained models."""
    parser.add_argument(
        "--output-precision",
        choices=OUTPUT_PRECISIONS,
        default="float32",
        help="of the output layer, whatever it was trained in (default: %(default)s)",
    )


def add_cpu(parser: argparse.ArgumentParser) -> None:
    """Declare ``--cpu``."""
    parser.add_argument("--cpu", action="store_true", help="use the CPU even where there is a GPU")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Declare ``--json``."""
    parser.add_argument("--json", action="store_true", help="print one JSON object for machines")


def add_plot(parser: argparse.ArgumentParser, *, help: str) -> None:
    """Declare ``--plot FILE``, ``args.plot``: a path that can be written, or None."""
    parser.add_argument("--plot", type=picture_file, metavar="FILE", help=help)


def add_output_file(parser: argparse.ArgumentParser, flag: str, *, help: str, required: bool = False) -> None:
    """Declare a flag for an output file: a path that can be written, or None if it is not required."""
    parser.add_argument(flag, type=output_file, metavar="FILE", required=required, help=help)


def add_out(
    parser: argparse.ArgumentParser, *, help: str, default: Optional[str] = None, required: bool = True
) -> None:
    """Declare ``--out DIR``, ``args.out``: a folder that can be written. It is not required if there is a default.

    The default is checked like a given value.
    """
    parser.add_argument(
        "--out",
        type=output_folder,
        metavar="DIR",
        required=required and default is None,
        default=default,
        help=help if default is None else f"{help} (default: %(default)s)",
    )


def choose_device(args: argparse.Namespace) -> str:
    """Return the device of a GPU if there is one and ``--cpu`` was not given, else of the CPU."""
    return "cuda" if torch.cuda.is_available() and not args.cpu else "cpu"
