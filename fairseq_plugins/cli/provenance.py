"""Where figures come from: ``python -m fairseq_plugins.cli.provenance``."""

import argparse

from fairseq_plugins.command_line import Command
from fairseq_plugins.reports.training_log import describe_provenance


class Provenance(Command):
    """Prints the provenance of figures that are measured now."""

    name = "provenance"
    summary = "Date, commit or installed version, and machine, as reports name them."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        pass

    def run(self, args: argparse.Namespace) -> None:
        print(describe_provenance())


if __name__ == "__main__":
    Provenance().main()
