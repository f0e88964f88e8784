"""From the raw text of a parallel corpus to the host's binaries: options, order of the steps, result."""

import argparse
import ctypes
import importlib.metadata
import itertools
import os
import shutil
import signal
import subprocess
import sys
from argparse import Namespace
from functools import partial
from pathlib import Path

from . import subwords
from .corpus import Corpus
from .errors import DataError, note
from .iwslt16 import IWSLT16
from .lines import Pair, map_lines, progress, read_lines, read_pair, write_lines, write_pair
from .multi30k import Multi30k
from .sources import digest
from .steps import locked, new_folder, run_step
from .tokens import filter_pairs, moses

CORPORA: dict[str, Corpus] = {corpus.name: corpus for corpus in (IWSLT16(), Multi30k())}
FORMAT = 1  # of the work folder; another number makes every step again


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
    """Options of the command line, with the pair's languages and what EXPECTED_COUNTS says."""
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
    add("--dest", type=_path, metavar="DIR", help=f"where the result goes (default: data-bin/{corpus.name}.PAIR)")
    add("--work", type=_path, metavar="DIR", help=f"downloads and text (default: downloads/{corpus.name})")
    add("--workers", type=_positive, default=_num_cores(), metavar="N", help="processes (default: all cores)")
    add("--bpe", choices=list(subwords.FILES), default="subword-nmt", help="who splits words (default: %(default)s)")
    add("--merges", type=_positive, default=corpus.num_merges, metavar="N", help="joint merges (default: %(default)s)")
    add("--min-length", type=_positive, default=1, metavar="N", help="tokens, train only (default: %(default)s)")
    add("--max-length", type=_positive, default=100, metavar="N", help="tokens, train only (default: %(default)s)")
    ratio = "longer side / shorter side, train only; 0: no limit (default: %(default)s)"
    add("--max-ratio", type=_ratio, default=corpus.max_ratio, metavar="R", help=ratio)
    add("--lowercase", action="store_true", help="lowercase the tokens; the raw references keep their case")
    add("--joined-dictionary", action="store_true", help="one dictionary for both languages")
    for flag, arguments_of_flag in corpus.extra_options.items():
        add(flag, **arguments_of_flag)
    options = parser.parse_args(arguments)
    if options.pair and options.pair_option and options.pair != options.pair_option:
        parser.error(f"two pairs: {options.pair} and {options.pair_option}")
    options.pair = options.pair or options.pair_option
    if not options.pair:
        parser.error(f"name the pair: {choices}")
    if options.min_length > options.max_length:
        parser.error("--min-length is larger than --max-length")
    expected = os.environ.get("EXPECTED_COUNTS", "check")
    if expected not in ("check", "skip"):
        parser.error(f"EXPECTED_COUNTS is check or skip, not {expected}")
    options.check = expected == "check"
    options.languages = tuple(options.pair.split("-"))
    options.dest = options.dest or Path("data-bin") / f"{corpus.name}.{options.pair}"
    options.work = options.work or Path("downloads") / corpus.name
    return options


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
        tokens = run_step(work / "tokens", settings, partial(make_tokens, text, options))

        settings = {
            "tokens": settings,
            "subwords": [options.bpe, importlib.metadata.version(options.bpe), options.merges],
        }
        pieces = run_step(work / "subwords", settings, partial(make_subwords, tokens, options))
        make_binaries(text, pieces, recipe(corpus, options), options)


def _is_finished(dest: Path, wanted: str) -> bool:
    record = dest / "prepared.txt"
    if record.is_file():
        found = read_lines(record)[0]
        if wanted not in (found, f"{found}, not checked"):
            raise DataError(f"{dest} already holds '{found}', not '{wanted}': delete it or pass another --dest")
        note(f"{dest} is already complete; delete it to prepare it again")
        return True
    if dest.exists() and not (dest.is_dir() and not any(dest.iterdir())):
        raise DataError(f"{dest} holds something that this script did not write: pass another --dest")
    return False


def splits_of(folder: Path, options: Namespace) -> list[str]:
    """Splits that a step wrote: train, valid, test, then the others by name."""
    found = {path.stem for path in folder.glob(f"*.{options.languages[0]}")}
    return ["train", "valid", "test", *sorted(found - {"train", "valid", "test"})]


def make_text(corpus: Corpus, files: dict[str, Path], options: Namespace, folder: Path) -> None:
    """Raw text, one sentence a line."""
    note(f"reading {corpus.name} {options.pair}")
    for split, pair in corpus.read(files, options).items():
        write_pair(folder, split, options.languages, pair)


def make_tokens(text: Path, options: Namespace, folder: Path) -> None:
    """Tokenised text; the training pairs are filtered, in the other splits every pair stays."""
    for split in splits_of(text, options):
        pair = read_pair(text, split, options.languages)
        sides = [
            map_lines(
                moses,
                (language, options.lowercase),
                lines,
                workers=options.workers,
                label=f"tokenising {split}.{language}",
            )
            for language, lines in zip(options.languages, pair)
        ]
        pair = Pair(*sides)
        if split == "train":
            limits = {name: getattr(options, name) for name in ("min_length", "max_length", "max_ratio")}
            kept, dropped = filter_pairs(pair, **limits)
            reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(dropped.items())) or "none"
            print(f"train: {len(kept.source)} of {len(pair.source)} pairs kept; dropped: {reasons}", flush=True)
            if not kept.source:
                raise DataError("the filter left no training pair: see --min-length, --max-length and --max-ratio")
            pair = kept
        elif empty := sum(not (source and target) for source, target in zip(*pair)):
            print(f"{split}: {empty} pairs with an empty side, kept in their places", flush=True)
        write_pair(folder, split, options.languages, pair)


def make_subwords(tokens: Path, options: Namespace, folder: Path) -> None:
    """The model that was learnt on both sides of train, and every split in its pieces."""
    note(f"learning {options.merges} merges with {options.bpe}")
    model = folder / subwords.FILES[options.bpe]
    train = read_pair(tokens, "train", options.languages)
    subwords.learn(options.bpe, itertools.chain(*train), options.merges, model)
    for split in splits_of(tokens, options):
        for language, lines in zip(options.languages, read_pair(tokens, split, options.languages)):
            label = f"splitting {split}.{language}"
            pieces = map_lines(subwords.load, (options.bpe, model), lines, workers=options.workers, label=label)
            write_lines(folder / f"{split}.{language}", pieces)


def make_binaries(text: Path, pieces: Path, line: str, options: Namespace) -> None:
    """The destination: the host's binaries and dictionaries, the subword model and the raw references."""
    splits = splits_of(pieces, options)
    tests = splits[2:]
    options.dest.parent.mkdir(parents=True, exist_ok=True)
    with new_folder(options.dest) as folder:
        # The host splits --testpref at commas and writes its arguments to a log: hence names without folders.
        (folder / "text").symlink_to(pieces.resolve())
        command = ["fairseq-preprocess", "--source-lang", options.languages[0], "--target-lang", options.languages[1]]
        command += ["--trainpref", "text/train", "--validpref", "text/valid"]
        command += ["--testpref", ",".join(f"text/{split}" for split in tests), "--destdir", "."]
        command += ["--joined-dictionary"] if options.joined_dictionary else []
        _run(command, folder, pieces.parent / "preprocess.log", num_files=2 * len(splits))
        (folder / "text").unlink()
        for index, split in enumerate(tests[1:], 1):
            for path in folder.glob(f"test{index}.{options.pair}.*"):
                path.rename(path.with_name(path.name.replace(f"test{index}.", f"{split}.", 1)))
        shutil.copyfile(pieces / subwords.FILES[options.bpe], folder / subwords.FILES[options.bpe])
        (folder / "raw").mkdir()
        for split, language in itertools.product(splits[1:], options.languages):
            shutil.copyfile(text / f"{split}.{language}", folder / "raw" / f"{split}.{language}")
        table = _check_binaries(folder, pieces, splits, options)
        write_lines(folder / "prepared.txt", [line, *table])
    print("\n".join(table))
    print(f"The binarised corpus is in {options.dest}, with {subwords.FILES[options.bpe]} and the references in raw.")


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
    for split, language in itertools.product(splits, options.languages):
        lines = read_lines(pieces / f"{split}.{language}")
        num_tokens = sum(len(line.split()) + 1 for line in lines)
        if f"[{language}] text/{split}.{language}: {len(lines)} sents, {num_tokens} tokens," not in log:
            raise DataError(f"fairseq-preprocess did not binarise {split}.{language} as it should have: report this")
        table.append(f"{split}.{language}: {len(lines)} lines, {num_tokens} tokens with one end mark a line")
    for language in options.languages:
        table.append(f"dict.{language}.txt: {len(read_lines(folder / f'dict.{language}.txt'))} rows")
    return table
