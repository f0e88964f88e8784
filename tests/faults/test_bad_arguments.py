"""Whatever a command is given, it ends with a result or with one line, and touches no file of the user's."""

import pytest
from budget import faults
from command_lines import command_lines
from forks import in_fork
from hypothesis import strategies as st
from left_files import contents
from outcomes import check_end, check_figures, check_files
from workplace import COMMANDS

pytestmark = pytest.mark.slow
STDIN = [b"", b"the cat eats\n", b"\xff\xfe\n\0", "\u2028caf\u00e9\r\nx\r".encode()]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_ends_with_a_result_or_a_line(name, workplace, pytestconfig):
    command = COMMANDS[name]

    @faults(pytestconfig, name, share=1 / len(COMMANDS))
    def check(words, stdin):
        with workplace() as folder:
            before = contents(folder)
            ended = in_fork(lambda: command.main(words), folder=folder, stdin=stdin)
            check_end(ended, told=f"{command.program}: error: ")
            check_figures(ended)
            check_files(before, folder)

    check(command_lines(name), st.sampled_from(STDIN))
