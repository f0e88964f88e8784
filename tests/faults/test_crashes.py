"""A command that is killed at any change of the file system, or in any write, is run again as if it never had been.

What was tried is printed: ``bash scripts/test.sh tests/faults/test_crashes.py --faults 2000 -rA``, which takes every
change of every command.
"""

import random
import signal

import pytest
from command_table import WRITINGS
from crashes import run_watched
from forks import Fork, in_fork, program
from trials import check_end
from typed_commands import parser_of

from fairseq_plugins.commands.app import COMMANDS

pytestmark = pytest.mark.slow
OUTPUTS = {"output_file", "output_folder", "picture_file"}
"""Types of the flags that name what is written."""
STARTING_TRAININGS = {"train", "fine-tune", "run"}
"""Commands that write and are left out: the training itself is tried."""
WAYS = ("killed before a change", "killed in a write", "full disk")


def sample(count, budget):
    """Places among ``range(count)``: all, or those that the budget allows."""
    return range(count) if count <= budget else sorted(random.Random(count).sample(range(count), budget))


def test_every_command_that_writes_is_tried():
    for name in COMMANDS.keys() - STARTING_TRAININGS:
        lines = [line.words for line in WRITINGS.values() if line.told == f"fairseq-plugins {name}: error: "]
        tried = {word for words in lines for word in words}
        actions = [one for one in parser_of(name)._actions if getattr(one.type, "__name__", "") in OUTPUTS]
        assert {one.option_strings[-1] for one in actions} <= tried


@pytest.mark.parametrize("name", WRITINGS)
def test_a_disturbed_command_is_run_again_as_if_it_never_had_been(name, workplace, undisturbed, pytestconfig):
    writing = WRITINGS[name]
    work, stdin = program(writing.words), writing.stdin
    changes, longest, result = undisturbed(name)
    assert changes and result

    def check_again(folder, disturbed):
        again = in_fork(work, folder=folder, stdin=stdin)
        assert again.status == 0, (disturbed, again)
        assert writing.result(folder) == result, disturbed

    budget = pytestconfig.getoption("--faults") // 50  # of changes, which are few; bytes are many, and sampled
    # the smallest budget disturbs each command in one way, and the commands in all
    ways = WAYS if budget else [WAYS[list(WRITINGS).index(name) % len(WAYS)]]
    for way in ways:
        by_change = way == "killed before a change"
        places = sample(len(changes), max(1, budget)) if by_change else sample(longest, max(1, budget // 5))
        for place in places:
            with workplace() as folder:
                if by_change:
                    ended, _ = run_watched(work, folder, num_changes=place, stdin=stdin)
                    assert ended.status == -signal.SIGKILL, (changes[place], ended)
                elif way == "killed in a write":
                    ended = in_fork(work, folder=folder, stdin=stdin, file_bytes=place, at_limit=signal.SIG_DFL)
                    assert ended.status != 0 or writing.result(folder) == result, (place, ended)
                else:
                    ended = in_fork(work, folder=folder, stdin=stdin, file_bytes=place)
                    assert not ended.hung, place
                    is_told = bool(writing.unkept) and writing.unkept in ended.err
                    assert ended.status != 0 or is_told or writing.result(folder) == result, (place, ended)
                    if not writing.words[0].startswith("fairseq_cli."):
                        check_end(ended, told=writing.told)
                check_again(folder, (way, place, ended))
        among = f"{len(changes)} changes" if by_change else f"{longest} bytes"
        print(f"{name}: {way}, at {len(places)} of {among}")


# two equal commands at once: each ends well or is refused in a line, and together they leave what one does


@pytest.mark.parametrize("name", sorted(WRITINGS))
def test_what_two_leave_is_that_of_one(name, workplace, undisturbed):
    writing = WRITINGS[name]
    work = program(writing.words)
    with workplace() as folder:
        both = [Fork(work, folder=folder, stdin=writing.stdin) for _ in range(2)]
        ended = [fork.finish() for fork in both]
        assert any(one.status == 0 for one in ended), ended
        for one in ended:
            assert not one.hung and "Traceback" not in one.err, one
            assert one.status == 0 or one.err.rstrip().split("\n")[-1].startswith(writing.told), one
        assert writing.result(folder) == undisturbed(name).result
