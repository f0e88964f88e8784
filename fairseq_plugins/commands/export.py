"""Trained models as folders to ship."""

import argparse
from pathlib import Path

from fairseq_plugins.command_line import add_out, add_trained_model
from fairseq_plugins.console import Command
from fairseq_plugins.evaluation.export import export_model


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_trained_model(
        parser,
        metavar="CKPT",
        help="a language model or an encoder-decoder; several are an ensemble",
        default_data="the folder of its training",
    )
    add_out(parser, help="folder to write")
    parser.add_argument(
        "--torch-export",
        action="store_true",
        help="write programs that run with torch alone, too: step.pt2 of a language model, or encoder.pt2 and "
        "decoder_step.pt2; for recurrent models",
    )


def _export(args: argparse.Namespace) -> None:
    made = export_model(
        list(map(Path, args.path)), data=args.data, out=args.out, command=args.command_line, programs=args.torch_export
    )
    print(f"{' and '.join(args.path)} written to {args.out}: {', '.join(made['files'])}")
    if not made["licences"]:
        print("no licence was found beside the data: add the corpus' licence before you pass the model on")
    for folder in made["user_dirs"]:
        print(f"the model was trained with parts of {folder}: pass that folder on, too, for --user-dir")


EXPORT = Command(
    add_arguments=_add_arguments,
    run=_export,
    description="""\
DIR gets all that the model needs: weights without optimiser state, dictionaries, subwords, and the record of how text
is prepared. Commands that read text take DIR both as DATA and as --path, and so does fairseq_plugins.load(DIR). Several
checkpoints become an ensemble, which --path DIR loads. DIR/export.json tells what it was made from. Files of DATA whose
names begin with LICENSE, LICENCE, COPYING or COPYRIGHT are copied. Absolute paths are reduced to their last part. An
earlier export in DIR is replaced.""",
    example="checkpoints/doc --out shipped/doc",
)
