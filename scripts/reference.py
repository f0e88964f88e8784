"""Write the reference pages from the code: commands, and flags of models, tasks, criteria and optimisers.

python scripts/reference.py            # writes fairseq_plugins/commands/REFERENCE.md and models/REFERENCE.md
python scripts/reference.py --check    # status 1 if a page is not what the code gives
"""

import argparse
import re
import sys
from pathlib import Path
from typing import Any, Dict, Iterator

from fairseq.dataclass.utils import gen_parser_from_dataclass

from fairseq_plugins.commands.app import COMMANDS, PROGRAM
from fairseq_plugins.criterions.noise_contrastive import NoiseContrastiveConfig
from fairseq_plugins.criterions.regularized_cross_entropy import RegularizedCrossEntropyConfig
from fairseq_plugins.models.gated_lm import GatedLanguageModelConfig
from fairseq_plugins.models.recurrent_encdec import RecurrentEncoderDecoderConfig
from fairseq_plugins.models.recurrent_lm import RecurrentLanguageModelConfig
from fairseq_plugins.modules.cell import RECURRENT_CELLS
from fairseq_plugins.optim.adaptive import DampedAdagradConfig, L2AdamConfig
from fairseq_plugins.optim.nt_asgd import NTASGDConfig
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS
from fairseq_plugins.output_layers.copying import COPYING
from fairseq_plugins.output_layers.gates import OUTPUT_GATES
from fairseq_plugins.tasks.scored_translation import EvalScorerConfig
from fairseq_plugins.tasks.stateful_lm import StatefulLanguageModelingConfig

PACKAGE = Path(__file__).resolve().parents[1] / "fairseq_plugins"
MADE = "Written by `python scripts/reference.py`. Do not edit.\n"

PARTS: Dict[str, Any] = {
    "Recurrent language models": RecurrentLanguageModelConfig,
    "Recurrent encoder-decoders": RecurrentEncoderDecoderConfig,
    "Gated language models": GatedLanguageModelConfig,
    "Recurrent cells": RECURRENT_CELLS,
    "Output layers": OUTPUT_LAYERS,
    "Output gates": OUTPUT_GATES,
    "Copying": COPYING,
    "Task `stateful_lm`": StatefulLanguageModelingConfig,
    "Task `scored_translation`": EvalScorerConfig,
    "Criterion `regularized_cross_entropy`": RegularizedCrossEntropyConfig,
    "Criterion `noise_contrastive`": NoiseContrastiveConfig,
    "Optimiser `nt_asgd`": NTASGDConfig,
    "Optimiser `l2_adam`": L2AdamConfig,
    "Optimiser `damped_adagrad`": DampedAdagradConfig,
}
"""By title: the dataclass with the flags of a part, or a registry of parts with a dataclass each."""


def commands_page() -> str:
    """All commands, and what they do."""
    lines = ["# List of commands", MADE, "`--help` after a command explains it with an example.", ""]
    return "\n".join([*lines, *(f"* `{name}`: {summary}" for name, (_, summary) in COMMANDS.items())]) + "\n"


def flags_page() -> str:
    """Flags by part, with the defaults of the code; presets set others."""
    lines = ["# Flags", MADE]
    lines += [f"`{PROGRAM} flags ARCH` prints the flags of one architecture with the values of its preset, and"]
    lines += [f"`{PROGRAM} train --list presets` prints all [architectures](README.md)."]
    lines += ["Transformers also have fairseq's flags."]
    lines += ["Names before a colon are the cells or output layers that have the flag.", ""]
    for title, part in PARTS.items():
        parser = argparse.ArgumentParser(add_help=False, conflict_handler="resolve")
        if isinstance(part, type):
            gen_parser_from_dataclass(parser, part())
        else:
            part.add_args(parser)
        lines += [f"## {title}", "", *_items(parser), ""]
    return "\n".join(lines).rstrip() + "\n"


def _items(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in (action for action in parser._actions if action.option_strings):
        values = f" ({', '.join(map(str, action.choices))})" if action.choices else ""
        words = re.sub(r"\s+", " ", action.help or "")
        yield f"* `{action.option_strings[0]}`{values}: {words}"


def main() -> None:
    """Write the pages, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page differs")
    args = parser.parse_args()
    for path, made in pages().items():
        if args.check and (not path.is_file() or path.read_text(encoding="utf-8") != made):
            sys.exit(f"{path.relative_to(PACKAGE.parent)} is not what the code gives: run python scripts/reference.py")
        if not args.check:
            path.write_text(made, encoding="utf-8")


def pages() -> Dict[Path, str]:
    """The pages by their paths."""
    return {PACKAGE / "commands/REFERENCE.md": commands_page(), PACKAGE / "models/REFERENCE.md": flags_page()}


if __name__ == "__main__":
    main()
