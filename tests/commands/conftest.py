"""A stub in place of fairseq-train."""

import pytest

from fairseq_plugins.recipes import training


@pytest.fixture
def commands(monkeypatch):
    """The commands that would run. The stub ends with ``commands.status`` and saves if ``commands.saves``."""

    class Commands(list):
        status = 0
        saves = False

    commands = Commands()

    def run_logged(command, *, log):
        commands.append((command, log))
        if commands.saves:
            replaced = log.with_name("checkpoint.tmp")
            replaced.write_text(f"checkpoint {len(commands)}")
            replaced.rename(log.with_name("checkpoint_last.pt"))
        return commands.status

    monkeypatch.setattr(training, "run_logged", run_logged)
    return commands
