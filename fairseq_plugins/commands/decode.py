"""Decoding of a split, and the arguments of decoding, which the scoring commands share."""

import argparse
from functools import partial

from fairseq.data.data_utils import post_process

from fairseq_plugins.command_line import add_beam, add_checkpoints, add_cpu, add_data, add_out, add_split
from fairseq_plugins.console import Command
from fairseq_plugins.evaluation.decoding import Decoding
from fairseq_plugins.evaluation.raw_text import subword_kind
from fairseq_plugins.options import UserError, count

DECODING_HELP = """\
Flags of fairseq-generate may follow a --: -- --lenpen 2 --min-len 8. Decoded text is kept and used again unless the
models, the data or the flags have changed.

Models search in the precision of their training if the processor has matrix products of that precision. translate,
pictures and Python search in float32 by default."""

DECODING_OPTIONS = ("split", "beam", "max_tokens", "bpe", "cpu")
"""Options of :func:`add_decoding` with defaults."""


def add_decoding(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Declare DATA, ``--path CKPT...``, ``--out DIR`` and all of :data:`DECODING_OPTIONS`."""
    add_data(parser, required=required)
    add_checkpoints(parser, help="checkpoints; several, also joined by colons, are an ensemble", required=required)
    add_split(parser, help="split to decode")
    add_out(parser, help="directory for generate.txt, the output of fairseq-generate", required=required)
    add_beam(parser)
    parser.add_argument(
        "--max-tokens",
        type=count,
        default=4000,
        metavar="N",
        help="tokens of a batch (default: %(default)s)",
    )
    parser.add_argument(
        "--bpe",
        type=_subwords,
        metavar="KIND",
        help="subwords that are joined, subword_nmt or sentencepiece (default: the kind of the codes or model in DATA, "
        "or subword_nmt)",
    )
    add_cpu(parser)


def _subwords(text: str) -> str:
    """Type of ``--bpe``: a kind of subwords that fairseq can join."""
    try:
        post_process("", text)
    except NotImplementedError as error:
        raise UserError(f"{text}: give subword_nmt or sentencepiece") from error
    return text


NOT_FORWARDED = {
    **dict.fromkeys(("--help", "-h"), "leave it out"),
    **dict.fromkeys(("--path", "--user-dir", "--beam", "--max-tokens"), "give it before the --"),
    "--gen-subset": "give --split before the --",
    **dict.fromkeys(("--bpe", "--remove-bpe", "--post-process"), "give --bpe KIND before the --"),
    **dict.fromkeys(("-s", "-t", "--source-lang", "--target-lang"), "leave it out, the models decide the direction"),
    "--quiet": "leave it out, the sentences are read from the output",
    "--score-reference": "leave it out, references would be scored as if a model had written them",
    "--prefix-size": "leave it out, translations would begin with the reference",
    "--constraints": "leave it out, DATA has no words that a translation must have",
    "--replace-unk": "leave it out, it needs the text of DATA; fairseq-plugins translate has it",
    "--dataset-impl": "leave it out, fairseq sees the form of DATA",
    **dict.fromkeys(("--print-step", "--retain-iter-history"), "leave it out, models here do not refine in iterations"),
    "--skip-invalid-size-inputs-valid-test": "leave it out, all sentences are scored; raise --max-source-positions and "
    "--max-target-positions",
    "--tokenizer": "leave it out, the text is detokenised when it is scored",
    "--results-path": "leave it out, --out is where the output goes",
    **dict.fromkeys(
        ("--num-shards", "--shard-id", "--distributed-world-size", "--distributed-rank"),
        "leave it out, a decoding is of the whole split",
    ),
}
"""Flags of ``fairseq-generate`` that users must not forward, each with the remedy."""


def read_decoding(args: argparse.Namespace) -> Decoding:
    """The decoding of the arguments of :func:`add_decoding`, checked before any work.

    Raises UserError if DATA has several models of subwords and ``--bpe`` names no kind, if a flag after ``--`` is one
    of :data:`NOT_FORWARDED`, or as :meth:`Decoding.check` does.
    """
    for flag in args.forwarded:
        remedy = NOT_FORWARDED.get(flag.partition("=")[0] if flag.startswith("--") else flag[:2])
        if remedy is not None:
            raise UserError(f"{flag} after the --: {remedy}")
    decoding = Decoding(
        data=args.data,
        models=args.path,
        split=args.split,
        out=args.out,
        beam=args.beam,
        max_tokens=args.max_tokens,
        subwords=args.bpe or subword_kind(args.data),
        flags=[*args.forwarded, *(["--cpu"] if args.cpu and "--cpu" not in args.forwarded else [])],
    )
    decoding.check()
    return decoding


def _decode(args: argparse.Namespace) -> None:
    read_decoding(args).run()


DECODE = Command(
    add_arguments=partial(add_decoding, required=True),
    run=_decode,
    description=f"Writes OUT/generate.txt, with subwords joined, and the log OUT/generate.log.\n\n{DECODING_HELP}",
    example="data-bin/tatoeba.de-en --path checkpoints/tatoeba --out decoded",
    forwards_to="fairseq-generate",
)
