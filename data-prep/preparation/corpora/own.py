"""Text of the user's own: any one or two languages or sides, split already or not, for a new or a given vocabulary."""

import argparse
import contextlib
import io
import json
import re
import shutil
from argparse import Namespace
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from ..corpus import given_path, natural
from ..lines import HUGGING_FACE, DataError, MissingFiles, Row, TokenizerError, composed, read_lines
from ..parallel_corpus import ParallelCorpus, split_rows
from ..sources import OPEN, Text, aligned_files, file_lines, text_file
from ..steps import SPLIT_NAMES, TEXT_RECORD
from ..subwords import MODEL_FILES, load
from .headlines import AGNews, screen, wordless
from .language_models import counted_tokens

NAME = re.compile("[A-Za-z0-9_]+")
TOKENIZERS = {"moses": "moses", "none": "blanks", "character": "characters"}  # as options -> in text.json
TOKENIZER_FILE = "tokenizer.json"  # copy of a HuggingFace tokenizer's file in the result
SEED = 1
MAX_CHARACTERS = 1000  # longest side of a training pair by characters
PUT = "put them there, .gz, .bz2, .xz or not, or name another folder with --from, or split one file a side with --split"


def tokenizer(text: str) -> str:
    """A name of TOKENIZERS, or ``hf:FILE``."""
    if text not in TOKENIZERS and not text.startswith(HUGGING_FACE):
        raise argparse.ArgumentTypeError(f"'{text}' is none of {', '.join(TOKENIZERS)}, {HUGGING_FACE}FILE")
    return text


def sizes(text: str) -> tuple[int, int]:
    """Two numbers from 1."""
    if not re.fullmatch(r"[1-9][0-9]{0,8},[1-9][0-9]{0,8}", text):
        raise argparse.ArgumentTypeError(f"lines of valid and of test are expected, such as 2000,2000, not '{text}'")
    valid, test = map(int, text.split(","))
    return valid, test


class Own(ParallelCorpus):
    """A folder with ``train|valid|test.NAME``, or with one file ``*.NAME`` a side that is split."""

    name = "own"
    title = "your own text: train, valid and test of each side, or one file a side with --split"
    does = "Tokenise, split into subwords and binarise"
    if_tokenised = ", or --tokenised to leave it as it is"
    pairs = ["de-en", "en-de"]  # and all others
    num_merges = 8000
    max_ratio = 0.0
    max_length = 250
    side_subwords = "bpe"
    keeps_empty = False
    lowercase = None  # of a given vocabulary, of headlines, or no
    own_options = {
        "--tokenizer": dict(
            type=tokenizer,
            metavar="NAME",
            help="moses, none, character, or hf:FILE of a HuggingFace tokenizer, which has its own subwords (default: "
            "moses; none for sentencepiece, which learns from raw text)",
        ),
        "--tokenised": dict(action="store_true", help="the text has tokens already: leave it as it is"),
        "--split": dict(
            type=sizes,
            metavar="VALID,TEST",
            help="split one file a side: VALID and TEST lines, drawn by --seed, are held out; lines that share a side "
            "with another stay in train",
        ),
        "--seed": dict(type=natural, metavar="N", help=f"chooses the lines of --split (default: {SEED})"),
        "--headlines": dict(
            action="store_true", help="articles and titles: in lower case, and without pairs that lack a word on a side"
        ),
        "--codes": dict(
            type=given_path,
            metavar="FILE",
            help="codes or model of the subwords of a trained model, instead of new ones",
        ),
        "--source-dict": dict(
            type=given_path, metavar="FILE", help="dictionary of that model, of the source or of the only side"
        ),
        "--target-dict": dict(type=given_path, metavar="FILE", help="dictionary of that model, of the target"),
    }

    def subject_type(self, text: str) -> str:
        """Check the argument: one name, or two with a hyphen."""
        names = text.split("-")
        if len(names) > 2 or not all(map(NAME.fullmatch, names)):
            raise argparse.ArgumentTypeError(
                f"'{text}' is neither a name of letters, digits and _ nor two with a hyphen, such as de-en"
            )
        if len(set(names)) < len(names):
            raise argparse.ArgumentTypeError(f"'{text}' has the same name twice: name the files of the sides apart")
        return text

    def subject_help(self) -> str:
        """Help of the argument, by examples."""
        return "de-en, article-title ... (source-target), or one side for a language model: de ..."

    def pair_with(self, language: str, options: Namespace) -> str:
        """Only the side itself is read."""
        return language

    def settle(self, options: Namespace, error: Callable[[str], None]) -> None:
        """Set tokenizer, subwords, case and dictionaries, which depend on each other and on a given vocabulary."""
        options.given = _given_record(options.source_dict)
        self._settle_tokens(options, error)
        # The tokens of a HuggingFace tokenizer are pieces. In lower case they would not be its pieces.
        lowered = "lower lines" if options.tokenizer.startswith(HUGGING_FACE) else "lower tokens"
        if options.lowercase is None:
            options.case = options.given.get("case", lowered if options.headlines else "kept")
        else:
            options.case = lowered if options.lowercase else "kept"
        options.lowercase = options.case != "kept"
        if options.nfc is None:
            options.nfc = not options.tokenised and options.given.get("unicode") != "kept"
        if options.tokenizer == "character" and options.pair and "-" in options.pair and options.max_length is None:
            options.max_length = MAX_CHARACTERS
        super().settle(options, error)
        if options.seed is not None and not options.split:
            error("--seed is of --split")
        options.seed = SEED if options.seed is None else options.seed
        self._settle_dictionaries(options, error)

    def _settle_tokens(self, options: Namespace, error: Callable[[str], None]) -> None:
        if options.tokenised and (options.tokenizer or options.nfc):
            error(f"--tokenised leaves the text as it is: leave out --{'tokenizer' if options.tokenizer else 'nfc'}")
        if options.codes:
            kind = _kind(options.codes)
            if kind == "sentencepiece" and (options.subwords or "").startswith(kind):
                kind = options.subwords
            if options.subwords not in (None, kind):
                error(f"--codes {options.codes} is of {kind}, not of --subwords {options.subwords}")
            if options.merges is not None:
                error("--merges is for new subwords: leave it out, or --codes")
            if not options.source_dict:
                error("--codes goes with --source-dict, and --target-dict of a pair: the model's whole vocabulary")
            options.subwords = kind
        if options.tokenised:
            options.tokenizer = "none"
        elif not options.tokenizer:
            of_raw_text = (options.subwords or "").startswith("sentencepiece")
            recorded = options.given.get("tokenizer", "blanks" if of_raw_text else "moses")
            names = {recorded: name for name, recorded in TOKENIZERS.items()}
            options.tokenizer = names.get(recorded, recorded)
        has_own_subwords = options.tokenizer not in ("moses", "none")
        if has_own_subwords and options.subwords not in (None, "none"):
            error(f"--tokenizer {options.tokenizer} has no other subwords: leave out --subwords and --codes")
        if options.subwords is None and "subwords" in options.given and not options.tokenised:
            codes = options.source_dict.parent / options.given["subwords"]
            error(f"--source-dict {options.source_dict} is of text with subwords: give --codes {codes} as well")
        if options.subwords is None and (has_own_subwords or options.tokenised or options.source_dict):
            options.subwords = "none"

    def _settle_dictionaries(self, options: Namespace, error: Callable[[str], None]) -> None:
        paths = [options.source_dict, options.target_dict][: len(options.kept_sides)]
        if options.target_dict and len(paths) == 1:
            error("--target-dict is for a pair: --source-dict is the dictionary of one side")
        if any(paths) and not all(paths):
            error(
                "--source-dict and --target-dict belong together: give both, also if the model has one for both sides"
            )
        if not any(paths):
            return
        if options.subwords != "none" and not options.codes:
            error("--source-dict has words of other subwords: give --codes FILE, or --subwords none")
        if options.joined_dictionary or options.threshold:
            flag = "--joined-dictionary" if options.joined_dictionary else "--threshold"
            error(f"{flag} is of a new dictionary: leave it out, or --source-dict")
        options.dictionaries = dict(zip(options.kept_sides, paths))

    def variant(self, options: Namespace) -> str:
        """Everything that the pair's name does not say, except subwords and limits."""
        parts = [
            "tokenised" if options.tokenised else f"tokenizer {options.tokenizer.partition(':')[0]}",
            f"split {','.join(map(str, options.split))} by seed {options.seed}" if options.split else "",
            "headlines" if options.headlines else "",
            "given vocabulary" if options.dictionaries else "",
            "no word ends in @@" if options.tokenizer == "none" and options.subwords == "bpe" else "",
        ]
        return ", ".join(filter(None, parts))

    def find(self, folder: Path, options: Namespace) -> dict[str, Path]:
        """The texts, and the files of a given tokenizer and vocabulary."""
        files = {f"--dictionary of {side}": file for side, file in options.dictionaries.items()}
        if options.codes:
            files["--codes"] = options.codes
        if options.tokenizer.startswith(HUGGING_FACE):
            files["--tokenizer"] = Path(options.tokenizer.removeprefix(HUGGING_FACE))
        for file in files.values():
            if not file.is_file():
                raise DataError(f"{file} is not a file: pass one that exists")
        if options.split:
            return {**{f"all.{side}": _only_file(folder, side) for side in options.sides}, **files}
        texts = {name: text_file(folder, name) for split in SPLIT_NAMES for name in _names(split, options)}
        if missing := [name for name, file in texts.items() if file is None]:
            raise MissingFiles(folder, ", ".join(missing), PUT)
        return {**texts, **files}

    def download(self, folder: Path, options: Namespace) -> None:
        """DataError: the files are the user's."""
        raise DataError("the files are your own: give the folder that they are in with --from DIR")

    def read(self, files: dict[str, Text], options: Namespace, scratch: Path) -> dict[str, Iterable[Row]]:
        """The splits. Headlines lose the pairs of train that have no word on a side."""
        self._check_given(options)
        if options.split:
            texts = [files[name] for name in _names("all", options)]
            form = composed if options.nfc else str
            rows = [tuple(map(form, row)) for row in _rows(texts, options)]
            splits = _split(rows, " and ".join(map(str, texts)), options)
        else:
            splits = {split: _rows([files[name] for name in _names(split, options)], options) for split in SPLIT_NAMES}
        if not options.headlines:
            return splits
        fault_of = partial(wordless, options.sides)
        return {split: screen(rows, fault_of, split, drop=split == "train") for split, rows in splits.items()}

    def _check_given(self, options: Namespace) -> None:
        """DataError unless the given tokenizer, codes and dictionaries can be read."""
        try:
            self.load_tokenizer(options.sides[0], options)
        except TokenizerError as error:
            raise DataError(str(error)) from None
        if options.codes:
            if options.codes.read_bytes().startswith(BOM_UTF8):
                raise DataError(f"{options.codes} begins with a byte order mark: save it without one")
            try:
                with contextlib.redirect_stderr(io.StringIO()):  # subword-nmt prints and ends the process
                    load(options.subwords, options.codes)
            except (ValueError, RuntimeError, SystemExit):
                raise DataError(f"{options.codes} has no codes of subword-nmt and no model of sentencepiece") from None
        for dictionary in options.dictionaries.values():
            _check_dictionary(dictionary)

    def words_of_text(self, options: Namespace) -> dict[str, str]:
        """Words of the tokenizer."""
        if options.tokenizer == "moses":
            words = {**super().words_of_text(options), "case": options.case}
            if "language" in words:  # of one side
                words["language"] = options.given.get("language", words["language"])
            return words
        return {"tokenizer": TOKENIZERS.get(options.tokenizer, options.tokenizer), "case": options.case}

    def text_record(self, options: Namespace) -> dict[str, str]:
        """The record names the copy of a HuggingFace tokenizer's file."""
        record = super().text_record(options)
        if options.tokenizer.startswith(HUGGING_FACE):
            record["tokenizer"] = f"{HUGGING_FACE}{TOKENIZER_FILE}"
        return record

    def add_files(self, folders: dict[str, Path], result: Path, options: Namespace) -> None:
        """Add the file of a HuggingFace tokenizer, too."""
        super().add_files(folders, result, options)
        if options.tokenizer.startswith(HUGGING_FACE):
            shutil.copyfile(options.tokenizer.removeprefix(HUGGING_FACE), result / TOKENIZER_FILE)

    def expects(self, options: Namespace) -> str:
        """Raw text, unless it is said to be tokenised."""
        return "anything" if options.tokenised else "raw"

    def escapes(self, options: Namespace) -> Sequence[str]:
        """Moses' escapes, or none for text that Moses did not tokenise."""
        return super().escapes(options) if options.tokenised or options.tokenizer == "moses" else ()

    def next_recipe(self, options: Namespace) -> str:
        """For headlines, the recipe of the headline corpora; otherwise the base class's."""
        return AGNews().next_recipe(options) if options.headlines else super().next_recipe(options)


def _given_record(dictionary: Path | None) -> dict[str, str]:
    """How the text of a given vocabulary was prepared, by the record beside its dictionary, if there is one."""
    try:
        record = json.loads((dictionary.parent / TEXT_RECORD).read_text(encoding="utf-8")) if dictionary else {}
    except (OSError, ValueError):
        return {}
    if not isinstance(record, dict) or not all(isinstance(value, str) for value in record.values()):
        return {}
    if (name := record.get("tokenizer", "")).startswith(HUGGING_FACE):
        record["tokenizer"] = f"{HUGGING_FACE}{dictionary.parent / name.removeprefix(HUGGING_FACE)}"
    return record


def _check_dictionary(path: Path) -> None:
    """DataError unless fairseq can read the dictionary."""
    words: set[str] = set()
    try:
        for number, line in enumerate(read_lines(path), 1):
            row = re.fullmatch(r"(?!\ufeff)(\S+) [0-9]+( #fairseq:overwrite)?", line.rstrip())  # CRLF as well
            if not row:
                raise DataError(f"{path}:{number}: not a line of a dictionary of fairseq, WORD COUNT")
            if row[1] in words and not row[2]:
                raise DataError(f"{path}:{number}: {row[1]} is there twice: give the dictionary that the model has")
            words.add(row[1])
    except UnicodeDecodeError:
        raise DataError(f"{path} is not text in UTF-8: give the dictionary that the model has") from None


def _kind(codes: Path) -> str:
    """The kind of subwords of a file: by its name if data-prep writes such a file, otherwise by its content."""
    kinds = {file: kind for kind, file in MODEL_FILES.items()}
    if codes.name in kinds or not codes.is_file():
        return kinds.get(codes.name, "bpe")
    with open(codes, "rb") as file:
        return "sentencepiece" if b"\0" in file.read(1000) else "bpe"  # codes of bpe are text


def _names(split: str, options: Namespace) -> list[str]:
    return [f"{split}.{side}" for side in options.sides]


def _only_file(folder: Path, side: str) -> Path:
    """The file whose name ends in ``.side``, compressed or not."""
    ends = tuple(f".{side}{end}" for end in OPEN)
    files = folder.iterdir() if folder.is_dir() else []
    found = sorted(file for file in files if file.is_file() and file.name.endswith(ends))
    if not found:
        raise MissingFiles(
            folder,
            f"*.{side}, such as news.{side}",
            "put the file of this side there, .gz, .bz2, .xz or not, or name another folder with --from",
        )
    if len(found) > 1:
        listed = ", ".join(file.name for file in found[:4])
        raise DataError(f"{folder} has {listed}: --split takes one file *.{side}; keep one, or leave out --split")
    return found[0]


def _rows(texts: Sequence[Text], options: Namespace) -> Iterator[Row]:
    """Rows of one file or of two."""
    rows = aligned_files(*texts) if len(texts) > 1 else counted_tokens(file_lines(texts[0]), None, texts[0])
    if options.tokenizer != "none" or options.subwords != "bpe":
        yield from rows
        return
    for number, row in enumerate(rows, 1):
        for text, line in zip(texts, row):
            if "@@" in line and (found := [word for word in line.split() if word.endswith("@@")]):
                raise DataError(
                    f"{text}:{number}: {found[0]} ends in @@ as pieces of bpe do: remove @@, or choose other --subwords"
                )
        yield row


def _split(rows: list[Row], where: str, options: Namespace) -> dict[str, Iterable[Row]]:
    num_valid, num_test = options.split
    wanted = f"--split {num_valid},{num_test}"
    if num_valid + num_test >= len(rows):
        raise DataError(f"{where}: {len(rows)} lines, too few for {wanted} and train: give smaller numbers")
    splits = split_rows(rows, num_valid=num_valid, num_test=num_test, seed=f"{options.seed} ")
    if len(splits["valid"]) < num_valid:
        num_alone = len(splits["valid"]) + len(splits["test"])
        raise DataError(f"{where}: only {num_alone} lines share no side with another, too few for {wanted}")
    return dict(splits)
