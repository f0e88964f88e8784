"""Of two equal commands at the same time each ends well or is refused in a line, and what they leave is that of one."""

import pytest
from forks import Fork
from programs import program
from writings import WRITINGS

pytestmark = pytest.mark.slow


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
