"""The text that a command scores: decoded by a model from DATA, read from files, or from the standard input."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional, Sequence, get_args

from fairseq.data.data_utils import post_process

from fairseq_plugins.command_line import add_beam, add_checkpoints, add_cpu, add_data, add_input, add_out, add_split
from fairseq_plugins.evaluation.checkpoints import num_sentences, raw_reference
from fairseq_plugins.evaluation.decoding import HYPOTHESES_FILE, Decoding
from fairseq_plugins.evaluation.raw_text import LANGUAGES, check_language, compared_case, is_language, subword_kind
from fairseq_plugins.evaluation.translation_scores import TextFormat, check_blank_references
from fairseq_plugins.files import STANDARD_INPUT, given_path, name_of, read_lines, write_text
from fairseq_plugins.metrics.corpus import LetterCase
from fairseq_plugins.options import UserError, count, flag_of

DECODING_HELP = """\
Flags of fairseq-generate may follow a --: -- --lenpen 2 --min-len 8. Decoded text is kept and used again unless the
models, the data or the flags have changed.

Models search in the precision of their training if the processor has matrix products of that precision. translate,
pictures and Python search in float32 by default."""


@dataclass(frozen=True)
class ScoredText:
    """A text and its references.

    Attributes:
        files: with the text.
        format: of the files.
        references: files with raw text.
        decoding: the decoding that writes the files, or None if they exist.
    """

    files: Sequence[Path]
    format: TextFormat
    references: Sequence[Path]
    decoding: Optional[Decoding]

    @property
    def name(self) -> str:
        """Name of the text in messages."""
        return name_of(*self.files)

    @property
    def data(self) -> Optional[Path]:
        """Folder that says how the text was tokenised, or None for a text that exists."""
        return None if self.decoding is None else self.decoding.data

    @property
    def language(self) -> str:
        """The models' target language, or the ending of the first reference's name, or ""."""
        if self.decoding is None:
            ending = _ending(self.references[0])
            return ending if is_language(ending) else ""
        return self.decoding.languages[1]

    @property
    def case(self) -> LetterCase:
        """Case is ignored if DATA is in lower case, because its models cannot write upper case."""
        return "kept" if self.decoding is None else compared_case(self.decoding.data)

    def check_language(self, language: str) -> None:
        """Check the language of ``--target-lang``: it exists, and the models translate into it."""
        check_language(language, flag="--target-lang")
        if self.decoding is not None and self.language in LANGUAGES and language != self.language:
            raise UserError(
                f"--target-lang {language}: {self.decoding.models[0]} translates into {self.language}: leave it out"
            )

    def check_side(self) -> None:
        """Check that no reference has the name of the source side."""
        if self.decoding is None:
            return
        source, target = self.decoding.languages
        for reference in self.references:
            if _ending(reference) == source != target:
                raise UserError(
                    f"{reference} ends in {source}, and {self.decoding.models[0]} translates {source} into {target}: "
                    f"give a reference in {target}"
                )

    def decode(self, *, result: str) -> None:
        """Decode, unless that was done or the text is in files. Results of an earlier scoring are removed first.

        Raises UserError if a sentence has only blank references, or a file has not one reference a sentence. Then
        earlier results stay.
        """
        if self.decoding is not None:
            lines = zip(*(read_lines(reference) for reference in self.references))
            check_blank_references(["".join(texts) for texts in lines], name=name_of(*self.references))
            self._check_lengths(self.decoding)
            for earlier in (result, HYPOTHESES_FILE):
                (self.decoding.out / earlier).unlink(missing_ok=True)
            self.decoding.run()

    def _check_lengths(self, decoding: Decoding) -> None:
        num_pairs = num_sentences(decoding.data, decoding.split, decoding.languages)
        for reference in self.references:
            if (num_lines := len(read_lines(reference))) != num_pairs:
                raise UserError(
                    f"{reference} has {num_lines} lines, and {decoding.split} of {decoding.data} {num_pairs} "
                    f"sentences: line {min(num_lines, num_pairs) + 1} has no counterpart"
                )

    def write(self, text: str, *, result: str) -> None:
        """Write a result to the file ``result`` beside a decoding; nothing without a decoding."""
        if self.decoding is not None:
            write_text(self.decoding.out / result, f"{text}\n")


def _ending(path: Path) -> str:
    """The ending of a file name without ".gz", such as its language."""
    return Path(path.name.removesuffix(".gz")).suffix[1:]


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
    "--prefix-size": "leave it out, what is written would begin with the reference",
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
    """The decoding of the arguments of :func:`add_decoding`.

    Raises UserError if DATA has several models of subwords and ``--bpe`` names no kind, or a flag after ``--`` is one
    of :data:`NOT_FORWARDED`.
    """
    for flag in args.forwarded:
        remedy = NOT_FORWARDED.get(flag.partition("=")[0] if flag.startswith("--") else flag[:2])
        if remedy is not None:
            raise UserError(f"{flag} after the --: {remedy}")
    return Decoding(
        data=args.data,
        models=args.path,
        split=args.split,
        out=args.out,
        beam=args.beam,
        max_tokens=args.max_tokens,
        subwords=args.bpe or subword_kind(args.data),
        flags=[*args.forwarded, *(["--cpu"] if args.cpu and "--cpu" not in args.forwarded else [])],
    )


def add_scored_text(parser: argparse.ArgumentParser, *, several_references: bool) -> None:
    """Declare the options of :func:`add_decoding`, ``--input FILE...``, ``--input-format`` and ``--reference``."""
    add_decoding(parser, required=False)
    parser.set_defaults(decoding_defaults={name: parser.get_default(name) for name in DECODING_OPTIONS})
    add_input(parser, help="score these instead, - is the standard input (default, without DATA)")
    parser.add_argument(
        "--input-format",
        choices=get_args(TextFormat),
        help="generate: output of fairseq-generate --remove-bpe; text: plain text, a sentence a line "
        "(default: generate)",
    )
    parser.add_argument(
        "--reference",
        type=given_path,
        metavar="FILE",
        nargs="+",
        action="extend",
        help="raw, untokenised reference, a sentence a line"
        + (", or several, of which each sentence has one in each file" if several_references else "")
        + " (default, with DATA: DATA/raw/SPLIT.TARGET)",
    )


def read_scored_text(args: argparse.Namespace) -> ScoredText:
    """The text of the arguments of :func:`add_scored_text`, checked before anything is decoded.

    Raises UserError if the arguments contradict each other or a file is missing.
    """
    if args.data is None:
        if args.path or args.out or args.forwarded:
            raise UserError("--path, --out and flags of fairseq-generate go with DATA, which comes first")
        for name, default in args.decoding_defaults.items():
            if getattr(args, name) != default:
                raise UserError(f"{flag_of(name)} goes with DATA, which comes first")
        if not args.reference:
            raise UserError("give --reference FILE, the raw text to compare with")
        text_format = args.input_format or "generate"
        return ScoredText(args.input or [STANDARD_INPUT], text_format, regular_files(args.reference), None)
    if args.input or args.input_format:
        raise UserError("give DATA with --path, to decode, or --input, with its --input-format, but not both")
    if not args.path or not args.out:
        raise UserError("DATA needs --path CKPT... and --out DIR; texts that are there are given with --input")
    decoding = read_decoding(args)
    decoding.check()
    references = regular_files(args.reference or [raw_reference(args.data, args.split, decoding.languages[1])])
    return ScoredText([decoding.generated], "generate", references, decoding)


def regular_files(paths: Sequence[Path], *, flag: str = "--reference") -> List[Path]:
    """The paths of texts that are read several times. Raises UserError if one cannot be."""
    for path in paths:
        if path.is_dir():
            raise UserError(f"{flag} {path} is a folder: give a text file; DATA comes first, before all flags")
        if path == STANDARD_INPUT or (path.exists() and not path.is_file()):
            raise UserError(f"{flag} {path}: it is read several times, give a regular file")
        read_lines(path)
    return list(paths)
