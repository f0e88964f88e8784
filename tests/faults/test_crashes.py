"""A command that is killed at any change of the file system, or in any write, is run again as if it never had been."""

import random
import signal
from typing import Callable, List, NamedTuple

import pytest
from crashes import changes_of, killed_after
from forks import in_fork
from programs import program
from writings import WRITINGS, Writing

pytestmark = pytest.mark.slow


class Undisturbed(NamedTuple):
    """A command line where nothing happens.

    Attributes:
        writing: its line of WRITINGS.
        work: what runs it.
        result: what it leaves.
        changes: of the file system, in their order.
        longest: bytes of the longest file.
    """

    writing: Writing
    work: Callable[[], None]
    result: object
    changes: List[str]
    longest: int


@pytest.fixture(scope="module")
def undisturbed():
    """Those that were run already."""
    return {}


@pytest.fixture(params=sorted(WRITINGS))
def case(request, workplace, undisturbed) -> Undisturbed:
    """Each, run once."""
    name = request.param
    if name not in undisturbed:
        writing = WRITINGS[name]
        work = program(writing.words)
        with workplace() as folder:
            changes = changes_of(work, folder)
            longest = max(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            undisturbed[name] = Undisturbed(writing, work, writing.result(folder), changes, longest)
    return undisturbed[name]


def sample(count, config):
    """Places among ``range(count)``: all, or those that the budget allows."""
    budget = max(1, config.getoption("--faults") // 50)
    return range(count) if count <= budget else sorted(random.Random(count).sample(range(count), budget))


def check_again(case, folder, disturbed):
    """Run it once more, to its end."""
    again = in_fork(case.work, folder=folder)
    assert again.status == 0, (disturbed, again)
    assert case.writing.result(folder) == case.result, disturbed


def test_killed_before_a_change(case, workplace, pytestconfig):
    assert case.changes
    for num_changes in sample(len(case.changes), pytestconfig):
        with workplace() as folder:
            killed = killed_after(case.work, folder, num_changes)
            assert killed.status == -signal.SIGKILL, (case.changes[num_changes], killed)
            check_again(case, folder, case.changes[num_changes])


def test_killed_in_a_write(case, workplace, pytestconfig):
    for file_bytes in sample(case.longest, pytestconfig):
        with workplace() as folder:
            killed = in_fork(case.work, folder=folder, file_bytes=file_bytes, at_limit=signal.SIG_DFL)
            check_again(case, folder, (file_bytes, killed))


def test_a_full_disk(case, workplace, pytestconfig):
    for file_bytes in sample(case.longest, pytestconfig):
        with workplace() as folder:
            full = in_fork(case.work, folder=folder, file_bytes=file_bytes)
            assert not full.hung, file_bytes
            assert full.status != 0 or case.writing.result(folder) == case.result, (file_bytes, full)
            is_host = case.writing.words[0].startswith("fairseq_cli.")
            assert is_host or "Traceback" not in full.err, (file_bytes, full)
            check_again(case, folder, (file_bytes, full))
