"""A damaged file ends a command with one line, or changes no figure of what has a checksum or a fixed length."""

import pytest
from command_table import READINGS, contents
from damages import damages
from forks import in_fork, program
from hypothesis import strategies as st
from trials import check_end, check_figures, check_files, faults, figures

from fairseq_plugins.commands.app import COMMANDS

pytestmark = pytest.mark.slow
CHECKED = (".pt", ".idx")
"""Damage to these is always found: archives have checksums, and the numbers of an index must fit together."""
MEASURED = (".bin", ".arpa")
"""Loss of an end of these is always found."""


def run(reading, folder):
    return in_fork(program(reading.words), folder=folder, stdin=reading.stdin)


def test_every_command_that_reads_files_is_tried():
    lines = [" ".join(reading.words[1:3]) for reading in READINGS.values()]
    left_out = {"fine-tune", "run", "train", "flags", "serve"}  # which reads what export and lm score read
    assert all(any(f"{line} ".startswith(f"{name} ") for line in lines) for name in COMMANDS.keys() - left_out)


@pytest.mark.parametrize("name", READINGS)
def test_damage_is_told_or_changes_nothing(name, workplace, pytestconfig):
    reading = READINGS[name]
    with workplace() as folder:
        whole = run(reading, folder)
        assert whole.status == 0, whole
        whole_result = reading.result(folder)
        assert whole_result is None or whole_result

    @faults(pytestconfig, name, share=1 / len(READINGS))
    def check(file, damage):
        with workplace() as folder:
            damage.apply(folder / file)
            before = contents(folder)
            ended = run(reading, folder)
            check_end(ended, told=reading.told)
            check_figures(ended)
            check_files(before, folder)
            if (name, damage.kind) == ("fairseq-generate", "removed") and ".tgt." in file:
                return  # fairseq decodes without targets
            checked = file.endswith(CHECKED) and damage.kind != "exchanged"
            if checked or damage.kind == "cut" and file.endswith(MEASURED):
                assert ended.status != 0 or figures(ended) == figures(whole), damage
                assert ended.status != 0 or reading.result(folder) == whole_result, damage

    check(st.sampled_from(reading.reads), damages())
