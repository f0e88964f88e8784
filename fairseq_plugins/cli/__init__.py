"""Commands: ``python -m fairseq_plugins.cli.<name> --help``."""

import logging


def quiet_host_logging() -> None:
    """Keep the notes that the host logs while importing and loading off a command's output."""
    logging.getLogger().setLevel(logging.WARNING)
