"""Which requests share a batch, and what becomes of the others when one fails."""

import threading
import time
from concurrent.futures import wait

import pytest

from fairseq_plugins.serving.batching import Batcher, TooManyWaiting


class Work:
    """Upper case, slowly: the first batch waits for ``go_on``. A line "bad" fails. Remembers its batches."""

    def __init__(self):
        self.batches, self.has_begun, self.go_on = [], threading.Event(), threading.Event()

    def __call__(self, lines, options):
        self.batches.append(("".join(lines), options))
        self.has_begun.set()
        assert self.go_on.wait(20)
        if "bad" in lines:
            raise ValueError("bad")
        return [line.upper() for line in lines]


@pytest.fixture
def work():
    return Work()


@pytest.fixture
def start(work):
    """``start(max_batch, max_waiting)``: a batcher that works on a first request, whose end is awaited."""

    def start(max_batch=4, max_waiting=9):
        batcher = Batcher(work, max_batch=max_batch, max_waiting=max_waiting)
        batcher.submit(["-"], 0)
        assert work.has_begun.wait(20)
        return batcher

    yield start
    work.go_on.set()


@pytest.mark.parametrize(
    "requests, batches",
    [
        ("a0 b0 c0", "abc0"),
        ("a0 b1 c0 d1", "ac0 bd1"),
        ("abc0 de0 f0", "abcf0 de0"),
        ("abcdef0 g0", "abcdef0 g0"),
        ("a0 b! c0 d!", "ac0 b! d!"),
    ],
)
def test_requests_that_wait_share_batches(requests, batches, start, work):
    batcher = start()
    requests = requests.split()
    answers = [batcher.submit(list(one[:-1]), one[-1], alone=one.endswith("!")) for one in requests]
    work.go_on.set()
    assert [answer.result(20) for answer in answers] == [list(one[:-1].upper()) for one in requests]
    assert [f"{lines}{options}" for lines, options in work.batches[1:]] == batches.split()


def test_a_failure_is_that_of_one_request(start, work):
    batcher = start()
    answers = [batcher.submit([line], 0) for line in ("a", "bad", "c")]
    work.go_on.set()
    wait(answers, 20)
    assert [answers[0].result(), str(answers[1].exception()), answers[2].result()] == [["A"], "bad", ["C"]]
    assert batcher.submit(["d"], 0).result(20) == ["D"]


def test_what_waits_is_limited_and_can_be_cancelled(start, work):
    batcher = start(max_waiting=2)
    first, second = (batcher.submit([line], 0) for line in "ab")
    with pytest.raises(TooManyWaiting):
        batcher.submit(["c"], 0)
    assert first.cancel()
    third = batcher.submit(["d"], 0)
    work.go_on.set()
    assert (second.result(20), third.result(20)) == (["B"], ["D"])
    assert [lines for lines, _ in work.batches] == ["-", "bd"]


def test_the_batcher_tells_whether_it_is_working(start, work):
    batcher = start(max_batch=1)
    answers = [batcher.submit([line], 0) for line in "abc"]
    assert batcher.is_working
    work.go_on.set()
    assert [answer.result(20) for answer in answers] == [["A"], ["B"], ["C"]]
    deadline = time.monotonic() + 20
    while batcher.is_working:
        assert time.monotonic() < deadline
