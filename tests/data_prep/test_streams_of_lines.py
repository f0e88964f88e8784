"""Streams of lines: cleaning, filters, work in processes that keeps order and bounds memory."""

import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from preparation import lines, sources, tokens
from preparation.corpora import multi30k
from preparation.errors import DataError
from preparation.make_subwords import make_subwords
from preparation.make_text import make_text, splits_of
from preparation.make_tokens import make_tokens
from preparation_runs import joined, options_of
from small_texts import sentences


def test_lines_end_at_line_feeds_only() -> None:
    content = "\ufeffa\r\nb\rc\u2028d\x85e\n\n\x00f\n  last".encode()
    assert sources.text_lines(content, "F") == ["a", "b c d e", "", "f", "last"]


def test_length_fault() -> None:
    rows = [("a", "x"), ("a b c", "x y"), ("a b", "x y z w"), ("", "x"), ("a b c d", "x y z"), ("a " * 9, "x")]
    faults = [tokens.length_fault(row, min_length=1, max_length=8, max_ratio=1.5) for row in rows]
    assert faults == ["", "", "ratio", "empty side", "", "length"]
    assert [tokens.length_fault(row, min_length=1, max_length=9, max_ratio=0) for row in rows].count("") == 5
    assert [tokens.length_fault(row, min_length=2, max_length=9, max_ratio=0) for row in rows[:2]] == ["length", ""]
    alone = [tokens.length_fault((line,), min_length=1, max_length=3, max_ratio=1) for line in ["a b c", "", "a b c d"]]
    assert alone == ["", "empty side", "length"]


def moody(seed: int) -> Callable[[int], tuple[int, int]]:
    """A worker that is fast and slow by turns."""
    rng = random.Random(f"{seed} {os.getpid()}")

    def work(item: int) -> tuple[int, int]:
        if rng.random() < 0.01:
            time.sleep(rng.random() / 20)
        return item, os.getpid()

    return work


@pytest.mark.parametrize("workers", [2, 5])
def test_workers_of_random_speed_keep_the_order(workers: int) -> None:
    num_items = 12 * lines.CHUNK + 7
    found = list(lines.map_in_order(moody, (1,), iter(range(num_items)), workers=workers, label="x"))
    assert [item for item, _ in found] == list(range(num_items))
    assert len({process for _, process in found}) > 1


@pytest.mark.parametrize("workers", [1, 3])
def test_a_bounded_number_of_lines_is_in_memory(workers: int) -> None:
    read = 0

    def endless() -> Iterator[int]:
        nonlocal read
        while True:
            read += 1
            yield read

    others = set(multiprocessing.active_children())
    stream = lines.map_in_order(moody, (1,), endless(), workers=workers, label="x")
    for taken in range(1, 10 * lines.CHUNK):
        next(stream)
        assert read - taken <= (lines.CHUNKS_AHEAD * workers + 3) * lines.CHUNK
    stream.close()
    assert set(multiprocessing.active_children()) <= others


def test_the_pipeline_is_a_stream(tmp_path: Path) -> None:
    """From the reader to the files of each step, with a corpus far larger than what may be in memory."""
    alive = most = 0

    class Line(str):
        def __init__(self, text: str) -> None:
            nonlocal alive, most
            alive += 1
            most = max(most, alive)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    class Generated(multi30k.Multi30k):
        def read(self, files: object, options: object, scratch: Path) -> dict:
            splits = {"train": 20 * lines.CHUNK, "valid": 3, "test": 3}
            return {
                split: ((Line(f"{n} Haus ."), Line(f"{n} house .")) for n in range(count))
                for split, count in splits.items()
            }

    corpus = multi30k.Multi30k()
    options = options_of(corpus, "de-en", "--merges", "10", "--workers", "2")
    folders = [tmp_path / name for name in ["text", "tokens", "subwords"]]
    for folder in folders:
        folder.mkdir()
    make_text(Generated(), {}, options, folders[0])
    assert alive <= 2 and most <= 10
    make_tokens(corpus, options, folders[0], folders[1])
    make_subwords((), options, folders[1], folders[2])
    for folder in folders:
        assert splits_of(folder) == {"train": 20 * lines.CHUNK, "valid": 3, "test": 3}
        for n, row in enumerate(lines.read_rows(folder, "train", options.sides)):
            assert all(joined(side).split()[0] == str(n) for side in row)


def test_a_worker_that_dies_is_told() -> None:
    with pytest.raises(DataError, match="a process ended while x .*--workers 1"):
        list(lines.map_in_order(deadly, (), range(3 * lines.CHUNK), workers=2, label="x"))


def deadly() -> Callable[[int], int]:
    return lambda item: os._exit(1) if item == lines.CHUNK + 3 else item


@pytest.mark.parametrize("workers", [2, 3, pytest.param(20, marks=pytest.mark.slow)])
def test_parallel_tokenisation_keeps_the_order(workers: int) -> None:
    text = sentences("de", 4 * lines.CHUNK + 7)
    expected = [tokens.moses("de", False)(line) for line in text]
    assert list(lines.map_in_order(tokens.moses, ("de", False), text, workers=workers, label="x")) == expected
    assert list(lines.map_in_order(tokens.moses, ("de", False), [], workers=workers, label="x")) == []
