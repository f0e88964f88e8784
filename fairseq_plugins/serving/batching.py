"""Limits on requests. Requests that wait together are worked on in one batch."""

import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Callable, List, Sequence


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits on the requests of a server: flags of ``serve``, with defaults and help."""

    batch: int = field(default=64, metadata={"help": "lines that are worked on at a time"})
    lines: int = field(default=100, metadata={"help": "lines of a request"})
    characters: int = field(default=5000, metadata={"help": "characters of a line"})
    body: int = field(default=1 << 20, metadata={"help": "bytes of a request's body"})
    tokens: int = field(
        default=200_000,
        metadata={"help": "tokens that a request may generate, over all its lines, texts and hypotheses"},
    )
    waiting: int = field(
        default=256, metadata={"help": "requests that wait; others are told to come back, by status 503"}
    )
    seconds: float = 60.0
    """Limit for a request, from its header to its answer, and for an idle connection."""


class TooManyWaiting(Exception):
    """The queue is full."""


@dataclass(frozen=True, eq=False)
class _Job:
    lines: Sequence[str]
    options: object
    alone: bool
    answer: "Future[List[Any]]" = field(default_factory=Future)


class Batcher:
    """A thread that works on the lines of requests.

    The request that has waited longest comes next, together with all others of the same options that fit into its
    batch. A request never waits for others to join it.

    Args:
        work: takes lines and options, and returns one result a line, which must not depend on other lines.
        max_batch: lines of a batch; a request with more is a batch by itself.
        max_waiting: requests that wait at most, besides those being worked on.

    Attributes:
        is_working: whether a batch is being worked on.
    """

    def __init__(self, work: Callable[[Sequence[str], Any], Sequence[Any]], *, max_batch: int, max_waiting: int):
        self._work, self._max_batch, self._max_waiting = work, max_batch, max_waiting
        self._jobs: List[_Job] = []
        self.is_working = False
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="batches", daemon=True).start()

    def submit(self, lines: Sequence[str], options: object, *, alone: bool = False) -> "Future[List[Any]]":
        """Queue a request. It can be cancelled while it waits. An error of ``work`` becomes the future's error.

        Args:
            lines: of the request.
            options: for ``work``; requests whose options are equal share batches.
            alone: whether the request must not share a batch, for example because its lines are one text.

        Raises:
            TooManyWaiting: if ``max_waiting`` requests wait.
        """
        with self._changed:
            self._jobs = [job for job in self._jobs if not job.answer.cancelled()]
            if len(self._jobs) >= self._max_waiting:
                raise TooManyWaiting
            job = _Job(lines, options, alone)
            self._jobs.append(job)
            self._changed.notify()
        return job.answer

    def _run(self) -> None:
        while True:
            if batch := [job for job in self._next_batch() if job.answer.set_running_or_notify_cancel()]:
                self._answer(batch)

    def _next_batch(self) -> List[_Job]:
        """Wait for requests, and take a batch of them."""
        with self._changed:
            self.is_working = False
            self._changed.wait_for(lambda: self._jobs)
            self.is_working = True
            batch, num_lines = self._jobs[:1], len(self._jobs[0].lines)
            for job in self._jobs[1:]:
                fits = num_lines + len(job.lines) <= self._max_batch and job.options == batch[0].options
                if fits and not (job.alone or batch[0].alone):
                    batch.append(job)
                    num_lines += len(job.lines)
            self._jobs = [job for job in self._jobs if job not in batch]
            return batch

    def _answer(self, jobs: Sequence[_Job]) -> None:
        try:
            found = list(self._work([line for job in jobs for line in job.lines], jobs[0].options))
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].answer.set_exception(error)
                return
            for job in jobs:  # only one may be at fault
                self._answer([job])
            return
        for job in jobs:
            job.answer.set_result(found[: len(job.lines)])
            found = found[len(job.lines) :]
