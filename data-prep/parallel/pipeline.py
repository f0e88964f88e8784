"""From the raw text of a parallel corpus to the host's binaries: options, order of the steps, result."""

import argparse
import ctypes
import importlib.metadata
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from . import subwords
from .agnews import AGNews
from .corpus import Corpus
from .errors import DataError, note
from .gigaword import Gigaword
from .iwslt16 import IWSLT16
from .lines import Pair, map_in_order, progress, read_lines, read_pairs, write_lines, write_pairs
from .multi30k import Multi30k
from .sources import digest
from .steps import locked, new_folder, run_step
from .tokens import filter_pairs, listed, on_both_sides
from .wmt14 import WMT14

CORPORA: dict[str, Corpus] = {corpus.name: corpus for corpus in (IWSLT16(), Multi30k(), WMT14(), Gigaword(), AGNews())}
FORMAT = 2  # of the work folder; another number makes every step again
SPLITS = "splits.json"  # of a step's folder: the splits in their order, with their numbers of pairs
HOST_WORKER_BYTES = 1 << 27  # of training text for each process of fairseq-preprocess


def main(arguments: list[str]) -> int:
    """Prepare the corpus that the first argument names; the exit status."""
    corpus = CORPORA[arguments[0]]
    options = parse_options(corpus, arguments[1:])
    try:
        prepare(corpus, options)
    except DataError as error:
        note(f"error: {error}")
        return 1
    except OSError as error:
        note(f"error: {error.filename or 'a file'}: {error.strerror or error}")
        return 1
    except KeyboardInterrupt:
        note("interrupted: run the same command again to go on")
        return 130
    return 0


def parse_options(corpus: Corpus, arguments: list[str]) -> Namespace:
    """Options of the command line, with the pair's sides and what EXPECTED_COUNTS says."""
    parser = argparse.ArgumentParser(
        prog="prepare.sh",
        description=f"Download, check, tokenise, split into subwords and binarise {corpus.title}.",
        epilog="EXPECTED_COUNTS=skip in the environment turns off the checks that only the real corpus passes.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    choices = ", ".join(corpus.pairs)
    add("pair", nargs="?", choices=corpus.pairs, metavar="PAIR", help=f"source-target: {choices}")
    add("--pair", dest="pair_option", choices=corpus.pairs, metavar="PAIR", help="the same as an option")
    add("--from", dest="source", type=_path, metavar="DIR", help="take the files from DIR; download nothing")
    add("--mirror", action="append", metavar="URL", help="folder to download from, instead of the built-in mirrors")
    add(
        "--dest",
        type=_path,
        metavar="DIR",
        help=f"where the result goes (default: data-bin/{_result_name(corpus, 'PAIR')})",
    )
    add("--work", type=_path, metavar="DIR", help=f"downloads and text (default: downloads/{corpus.name})")
    add("--workers", type=_positive, default=_num_cores(), metavar="N", help="processes (default: all cores)")
    add("--bpe", choices=list(subwords.KINDS), default="subword-nmt", help="who splits words (default: %(default)s)")
    add("--merges", type=_positive, default=corpus.num_merges, metavar="N", help="joint merges (default: %(default)s)")
    add("--min-length", type=_positive, default=1, metavar="N", help="tokens, train only (default: %(default)s)")
    add(
        "--max-length",
        type=_positive,
        default=corpus.max_length,
        metavar="N",
        help="tokens, train only (default: %(default)s)",
    )
    ratio = "longer side / shorter side, train only; 0: no limit (default: %(default)s)"
    add("--max-ratio", type=_ratio, default=corpus.max_ratio, metavar="R", help=ratio)
    lowercase = f"lowercase the tokens; the raw references keep their case (default: {corpus.lowercase})"
    add("--lowercase", action=argparse.BooleanOptionalAction, default=corpus.lowercase, help=lowercase)
    add("--joined-dictionary", action="store_true", help="one dictionary for both sides")
    for flag, arguments_of_flag in corpus.extra_options.items():
        add(flag, **arguments_of_flag)
    options = parser.parse_args(arguments)
    if options.pair and options.pair_option and options.pair != options.pair_option:
        parser.error(f"two pairs: {options.pair} and {options.pair_option}")
    options.pair = options.pair or options.pair_option or (corpus.pairs[0] if len(corpus.pairs) == 1 else None)
    if not options.pair:
        parser.error(f"name the pair: {choices}")
    if options.min_length > options.max_length:
        parser.error("--min-length is larger than --max-length")
    expected = os.environ.get("EXPECTED_COUNTS", "check")
    if expected not in ("check", "skip"):
        parser.error(f"EXPECTED_COUNTS is check or skip, not {expected}")
    options.check = expected == "check"
    options.sides = tuple(options.pair.split("-"))
    options.dest = options.dest or Path("data-bin") / _result_name(corpus, options.pair)
    options.work = options.work or Path("downloads") / corpus.name
    return options


def _result_name(corpus: Corpus, pair: str) -> str:
    return f"{corpus.name}.{pair}" if len(corpus.pairs) > 1 else corpus.name


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("a folder is expected, not ''")
    return Path(text)


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a positive number is expected, not '{text}'")
    return int(text)


def _ratio(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if number != 0 and not 1 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"0 or a number from 1 is expected, not '{text}'")
    return number


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def recipe(corpus: Corpus, options: Namespace) -> str:
    """One line that tells how a result was made."""
    parts = [
        f"{corpus.name} {options.pair}",
        corpus.recipe(options),
        f"{options.merges} merges of {options.bpe}",
        f"length {options.min_length} to {options.max_length}",
        f"ratio to {options.max_ratio:g}" if options.max_ratio else "any ratio",
        "lowercase" if options.lowercase else "",
        "joined dictionary" if options.joined_dictionary else "",
        "" if options.check else "not checked",
    ]
    return ", ".join(filter(None, parts))


def prepare(corpus: Corpus, options: Namespace) -> None:
    """Make ``options.dest``, unless it is there."""
    if not options.check:
        note("warning: EXPECTED_COUNTS=skip: checksums and numbers of pairs are not checked")
    if _is_finished(options.dest, recipe(corpus, options)):
        return
    if options.source and not options.source.is_dir():
        raise DataError(f"--from {options.source} is not a directory: pass the folder that holds the files")
    if not shutil.which("fairseq-preprocess"):
        raise DataError("fairseq-preprocess is not on PATH: activate the environment that fairseq is installed in")
    options.work.mkdir(parents=True, exist_ok=True)
    with locked(options.work):
        if _is_finished(options.dest, recipe(corpus, options)):  # by the run that this one waited for
            return
        if options.source is None:
            corpus.download(options.work, options)
        files = corpus.find(options.source or options.work, options)
        work = options.work / options.pair
        settings = {
            "format": FORMAT,
            "recipe": [corpus.name, options.pair, corpus.recipe(options), options.check],
            "files": {name: digest(path) for name, path in files.items()},
        }
        text = run_step(work / "text", settings, partial(make_text, corpus, files, options))

        settings = {
            "text": settings,
            "sacremoses": importlib.metadata.version("sacremoses"),
            "filter": [options.min_length, options.max_length, options.max_ratio, options.lowercase],
        }
        tokens = run_step(work / "tokens", settings, partial(make_tokens, corpus, text, options))

        settings = {
            "tokens": settings,
            "subwords": [options.bpe, importlib.metadata.version(subwords.KINDS[options.bpe].package), options.merges],
        }
        pieces = run_step(work / "subwords", settings, partial(make_subwords, corpus, tokens, options))
        make_binaries(text, pieces, recipe(corpus, options), options)


def _is_finished(dest: Path, wanted: str) -> bool:
    record = dest / "prepared.txt"
    if record.is_file():
        found = next(read_lines(record))
        if wanted not in (found, f"{found}, not checked"):
            raise DataError(f"{dest} already holds '{found}', not '{wanted}': delete it or pass another --dest")
        note(f"{dest} is already complete; delete it to prepare it again")
        return True
    if dest.exists() and not (dest.is_dir() and not any(dest.iterdir())):
        raise DataError(f"{dest} holds something that this script did not write: pass another --dest")
    return False


def splits_of(folder: Path) -> dict[str, int]:
    """Numbers of pairs of the splits that a step wrote: train, valid, test, then the others."""
    return json.loads((folder / SPLITS).read_text(encoding="utf-8"))


def _write_splits(folder: Path, splits: dict[str, int]) -> None:
    (folder / SPLITS).write_text(json.dumps(splits), encoding="utf-8")


def make_text(corpus: Corpus, files: dict[str, Path], options: Namespace, folder: Path) -> None:
    """Raw text, one sentence a line."""
    note(f"reading {corpus.name} {options.pair}")
    scratch = folder / "unpacked"
    scratch.mkdir()
    splits = {}
    for split, pairs in corpus.read(files, options, scratch).items():
        with progress(pairs, desc=f"reading {split}", unit=" pairs") as bar:
            splits[split] = write_pairs(folder, split, options.sides, bar)
        if not splits[split]:
            raise DataError(f"no pair of {split} is left: see what was removed")
    shutil.rmtree(scratch)
    _write_splits(folder, splits)


def make_tokens(corpus: Corpus, text: Path, options: Namespace, folder: Path) -> None:
    """Tokenised text; the training pairs are filtered, in the other splits every pair stays."""
    tokenizers = corpus.tokenizer, [(side, options.lowercase) for side in options.sides]
    splits = {}
    for split, total in splits_of(text).items():
        pairs = map_in_order(
            on_both_sides,
            tokenizers,
            read_pairs(text, split, options.sides),
            workers=options.workers,
            label=f"tokenising {split}",
            total=total,
        )
        if split == "train":
            dropped: Counter = Counter()
            limits = {name: getattr(options, name) for name in ("min_length", "max_length", "max_ratio")}
            kept = write_pairs(folder, split, options.sides, filter_pairs(pairs, dropped, **limits))
            print(f"train: {kept} of {total} pairs kept; dropped: {listed(dropped)}", flush=True)
            if not kept:
                raise DataError("the filter left no training pair: see --min-length, --max-length and --max-ratio")
            splits[split] = kept
        else:
            empty: Counter = Counter()
            splits[split] = write_pairs(folder, split, options.sides, _count_empty(pairs, empty))
            if empty:
                print(f"{split}: {empty.total()} pairs with an empty side, kept in their places", flush=True)
    _write_splits(folder, splits)


def _count_empty(pairs: Iterable[Pair], empty: Counter) -> Iterator[Pair]:
    for pair in pairs:
        if not all(pair):
            empty["pairs"] += 1
        yield pair


def make_subwords(corpus: Corpus, tokens: Path, options: Namespace, folder: Path) -> None:
    """The model that was learnt on both sides of train, and every split in its pieces."""
    splits = splits_of(tokens)
    model = folder / subwords.KINDS[options.bpe].file
    sides = [read_lines(tokens / f"train.{side}") for side in options.sides]
    with progress(itertools.chain(*sides), total=2 * splits["train"], desc="counting words", unit=" lines") as train:
        note(f"learning {options.merges} merges with {options.bpe}")
        subwords.learn(options.bpe, train, options.merges, model, corpus.symbols)
    for split, total in splits.items():
        pairs = map_in_order(
            on_both_sides,
            (subwords.load, [(options.bpe, model)] * 2),
            read_pairs(tokens, split, options.sides),
            workers=options.workers,
            label=f"splitting {split}",
            total=total,
        )
        write_pairs(folder, split, options.sides, pairs)
    _write_splits(folder, splits)


def make_binaries(text: Path, pieces: Path, line: str, options: Namespace) -> None:
    """The destination: the host's binaries and dictionaries, the subword model and the raw references."""
    splits = list(splits_of(pieces))
    tests = splits[2:]
    options.dest.parent.mkdir(parents=True, exist_ok=True)
    with new_folder(options.dest) as folder:
        # The host splits --testpref at commas and writes its arguments to a log: hence names without folders.
        (folder / "text").symlink_to(pieces.resolve())
        command = ["fairseq-preprocess", "--source-lang", options.sides[0], "--target-lang", options.sides[1]]
        command += ["--trainpref", "text/train", "--validpref", "text/valid"]
        command += ["--testpref", ",".join(f"text/{split}" for split in tests), "--destdir", "."]
        command += ["--joined-dictionary"] if options.joined_dictionary else []
        train_bytes = sum((pieces / f"train.{side}").stat().st_size for side in options.sides)
        command += ["--workers", str(min(options.workers, 1 + train_bytes // HOST_WORKER_BYTES))]
        _run(command, folder, pieces.parent / "preprocess.log", num_files=2 * len(splits))
        (folder / "text").unlink()
        for index, split in enumerate(tests[1:], 1):
            for path in folder.glob(f"test{index}.{options.pair}.*"):
                path.rename(path.with_name(path.name.replace(f"test{index}.", f"{split}.", 1)))
        shutil.copyfile(pieces / subwords.KINDS[options.bpe].file, folder / subwords.KINDS[options.bpe].file)
        (folder / "raw").mkdir()
        for split, side in itertools.product(splits[1:], options.sides):
            shutil.copyfile(text / f"{split}.{side}", folder / "raw" / f"{split}.{side}")
        table = _check_binaries(folder, pieces, splits, options)
        write_lines(folder / "prepared.txt", [line, *table])
    print("\n".join(table))
    print(
        f"The binarised corpus is in {options.dest}, with {subwords.KINDS[options.bpe].file} and the references in raw."
    )


def _run(command: list[str], folder: Path, log: Path, num_files: int) -> None:
    note(f"binarising, log in {log}")
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    environment = {**os.environ, "LOGLEVEL": "INFO", "PYTHONUNBUFFERED": "1"}
    with (
        open(log, "wb") as file,
        subprocess.Popen(command, cwd=folder, env=environment, preexec_fn=_die_with_parent, **streams) as host,
        progress(None, total=num_files, desc="binarising", unit=" files") as bar,
    ):
        for line in host.stdout:
            file.write(line)
            bar.update(b" sents, " in line)
    if host.returncode:
        last = (log.read_text(encoding="utf-8", errors="replace").strip() or "no output").rpartition("\n")[2]
        raise DataError(f"fairseq-preprocess failed, see {log} ({last})")


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _check_binaries(folder: Path, pieces: Path, splits: list[str], options: Namespace) -> list[str]:
    """Compare what the host counted with the text; the counts as lines of a table."""
    log = (folder / "preprocess.log").read_text(encoding="utf-8")
    table = []
    for split, side in itertools.product(splits, options.sides):
        num_lines = num_tokens = 0
        for line in read_lines(pieces / f"{split}.{side}"):
            num_lines += 1
            num_tokens += len(line.split()) + 1
        if f"[{side}] text/{split}.{side}: {num_lines} sents, {num_tokens} tokens," not in log:
            raise DataError(f"fairseq-preprocess did not binarise {split}.{side} as it should have: report this")
        table.append(f"{split}.{side}: {num_lines} lines, {num_tokens} tokens with one end mark a line")
    for side in options.sides:
        table.append(f"dict.{side}.txt: {sum(1 for _ in read_lines(folder / f'dict.{side}.txt'))} rows")
    return table
