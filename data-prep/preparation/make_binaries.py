"""The last step: the host's binaries and dictionaries, checked against the text, and the result's folder."""

import ctypes
import itertools
import json
import os
import signal
import subprocess
import sys
from argparse import Namespace
from functools import partial
from pathlib import Path

from .corpus import Corpus
from .errors import PASS_OTHERS, DataError, note
from .finished import DATA, DIGESTS, RECORD, binary_name, dictionary_name
from .lines import progress, read_lines, write_lines
from .make_text import splits_of
from .sources import digest
from .steps import new_folder
from .text_record import add_text_record

HOST_WORKER_BYTES = 1 << 27  # of training text for each process of fairseq-preprocess


def make_binaries(
    corpus: Corpus, files: dict[str, Path], folders: dict[str, Path], record: list[str], options: Namespace
) -> list[str]:
    """Make the destination from the folder of the last step; its counts as lines of a table.

    ``record`` is what ``prepared.txt`` says before them.
    """
    pieces = list(folders.values())[-1]
    sizes = splits_of(pieces)
    splits = list(sizes)
    with new_folder(options.dest) as folder:
        # The host splits --testpref at commas and writes its arguments to a log: hence names without folders.
        (folder / "text").symlink_to(pieces.resolve())
        command = _command(pieces, splits[2:], options)
        run_host(command, folder, pieces.parent / "preprocess.log", num_files=len(splits) * len(options.kept_sides))
        (folder / "text").unlink()
        for index, split in enumerate(splits[3:], 1):
            for path in folder.glob(f"test{index}.*"):
                path.rename(path.with_name(path.name.replace(f"test{index}.", f"{split}.", 1)))
        table = _check_binaries(folder, pieces, sizes, options)
        for side in options.kept_sides:
            num_rows = sum(1 for _ in read_lines(folder / dictionary_name(side, options)))
            if not num_rows:
                remedy = "give a smaller --threshold" if options.threshold else PASS_OTHERS
                raise DataError(f"no word of train is left for {dictionary_name(side, options)}: {remedy}")
            if options.check:
                corpus.check_dictionary(num_rows, files, options)
            table.append(f"{dictionary_name(side, options)}: {num_rows} rows")
        corpus.add_files(folders, folder, options)
        add_text_record(corpus, folder, options)
        data = sorted(path for path in folder.iterdir() if DATA.fullmatch(path.name))
        digests = json.dumps({path.name: digest(path) for path in data}, indent=1)
        (folder / DIGESTS).write_text(f"{digests}\n", encoding="utf-8")
        write_lines(folder / RECORD, [*record, *table])
    return table


def _command(pieces: Path, tests: list[str], options: Namespace) -> list[str]:
    command = ["fairseq-preprocess", "--destdir", "."]
    suffix = ""
    if len(options.kept_sides) == 1:
        suffix = f".{options.kept_sides[0]}"
        command += ["--only-source", "--padding-factor", "1"]
    else:
        command += ["--source-lang", options.kept_sides[0], "--target-lang", options.kept_sides[1]]
    command += ["--trainpref", f"text/train{suffix}", "--validpref", f"text/valid{suffix}"]
    command += ["--testpref", ",".join(f"text/{split}{suffix}" for split in tests)]
    command += ["--thresholdsrc", str(options.threshold)] if options.threshold else []
    command += ["--joined-dictionary"] if options.joined_dictionary else []
    train_bytes = sum((pieces / f"train.{side}").stat().st_size for side in options.kept_sides)
    return [*command, "--workers", str(min(options.workers, 1 + train_bytes // HOST_WORKER_BYTES))]


def run_host(command: list[str], folder: Path, log: Path, *, num_files: int) -> None:
    """Run the host's command in ``folder``; DataError with the last line of its log if it fails."""
    note(f"binarising, log in {log}")
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    environment = {**os.environ, "LOGLEVEL": "INFO", "PYTHONUNBUFFERED": "1"}
    die_with_parent = partial(_die_with_parent, os.getpid())
    with (
        open(log, "wb") as file,
        subprocess.Popen(command, cwd=folder, env=environment, preexec_fn=die_with_parent, **streams) as host,
        progress(None, total=num_files, desc="binarising", unit=" files") as bar,
    ):
        for line in host.stdout:
            file.write(line)
            bar.update(b" sents, " in line)
    if host.returncode:
        last = (log.read_text(encoding="utf-8", errors="replace").strip() or "no output").rpartition("\n")[2]
        raise DataError(f"fairseq-preprocess failed, see {log} ({last})")


def _die_with_parent(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it died before
        os._exit(1)


def _check_binaries(folder: Path, pieces: Path, sizes: dict[str, int], options: Namespace) -> list[str]:
    """Compare the text with its recorded numbers of lines and with what the host counted; a table's lines."""
    log = (folder / "preprocess.log").read_text(encoding="utf-8")
    table = []
    for split, side in itertools.product(sizes, options.kept_sides):
        num_lines = num_tokens = 0
        for line in read_lines(pieces / f"{split}.{side}"):
            num_lines += 1
            num_tokens += len(line.split()) + 1
        if num_lines != sizes[split]:
            raise DataError(
                f"{pieces / f'{split}.{side}'} has {num_lines} lines, not the {sizes[split]} that were written: "
                f"delete {pieces} and run again"
            )
        if f" text/{split}.{side}: {num_lines} sents, {num_tokens} tokens," not in log:
            raise DataError(f"fairseq-preprocess did not binarise {split}.{side} as it should have: report this")
        name = split if len(options.kept_sides) == 1 else f"{split}.{side}"
        table.append(f"{name}: {num_lines} lines, {num_tokens} tokens with one end mark a line")
        for end in ("bin", "idx"):
            assert (folder / f"{binary_name(split, side, options)}.{end}").is_file()
    return table
