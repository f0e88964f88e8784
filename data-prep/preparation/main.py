"""Prepare a corpus: options, download, steps, binaries, report, in this order."""

import shutil
import sys
from argparse import Namespace
from functools import partial
from pathlib import Path

from . import ACTIVATE
from .corpora import CORPORA
from .corpus import Corpus, parse_options
from .lines import DataError, note
from .sources import FULL, digest
from .steps import check_writable, files_line, is_finished, locked, make_binaries, make_text, run_step

FORMAT = 6  # version of the work folder; another one repeats all steps


def main(arguments: list[str]) -> int:
    """Prepare the corpus that the first argument names. Returns the exit status."""
    name, *rest = arguments or [""]
    if name not in CORPORA:
        print(f"usage: prepare.py CORPUS [option]...\nCORPUS is one of: {', '.join(CORPORA)}", file=sys.stderr)
        return 2
    corpus = CORPORA[name]
    try:
        prepare(corpus, parse_options(corpus, rest))
    except DataError as error:
        note(f"error: {error}")
        return 2
    except OSError as error:
        remedy = ": make room and run again, or pass another --work and --dest" if error.errno in FULL else ""
        note(f"error: {error.filename or 'a file'}: {error.strerror or error}{remedy}")
        return 2
    except KeyboardInterrupt:
        note("interrupted: run the same command again to resume")
        return 130
    return 0


def prepare(corpus: Corpus, options: Namespace) -> None:
    """Make ``options.dest`` unless it is complete."""
    summary = corpus.summary(options)
    if not options.nfc:
        summary += ", no NFC"
    if not options.check:
        note("warning: EXPECTED_COUNTS=skip: checksums, counts and vocabulary are not checked")
        summary += ", not checked"
    if options.source and not options.source.is_dir():
        raise DataError(f"--from {options.source} is not a directory: pass the folder that holds the files")
    if is_finished(corpus, summary, options):
        return
    if not shutil.which("fairseq-preprocess"):
        raise DataError(f"fairseq-preprocess is not on PATH: {ACTIVATE}")
    check_writable(options.dest)
    with locked(options.work):
        if is_finished(corpus, summary, options):  # by the run that held the lock
            return
        if options.source is None and not corpus.has_files(options.work, options):
            corpus.download(options.work, options)
        files = corpus.find(options.source or options.work, options)
        digests = {name: digest(path) for name, path in files.items()}
        folders = make_steps(corpus, files, digests, options)
        table = make_binaries(corpus, files, folders, [summary, files_line(digests)], options)
    print("\n".join([*table, corpus.report(options)]), flush=True)


def make_steps(corpus: Corpus, files: dict[str, Path], digests: dict[str, str], options: Namespace) -> dict[str, Path]:
    """Run the steps. Returns their folders by name. The last one holds what is binarised."""
    work = options.work / options.subject
    steps = corpus.steps(options)
    for name in ["text", *(step.name for step in steps)]:
        replaced = (work / name).resolve()
        if any(path.resolve().is_relative_to(replaced) for path in [*files.values(), options.dest]):
            raise DataError(f"{work / name} would be replaced, but holds the corpus or --dest: pass another --work")
    settings: dict[str, object] = {
        "format": FORMAT,
        "recipe": [corpus.name, options.subject, corpus.variant(options), options.check, options.nfc],
        "files": digests,
    }
    folders = {"text": run_step(work / "text", settings, partial(make_text, corpus, files, options))}
    for step in steps:
        settings = {"before": settings, step.name: step.settings}
        previous = list(folders.values())[-1]
        folders[step.name] = run_step(work / step.name, settings, partial(step.make, previous))
    return folders
