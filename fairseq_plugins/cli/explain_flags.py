"""Help for the plugins' flags, which fairseq's --help leaves out: ``python -m fairseq_plugins.cli.explain_flags``."""

import argparse
import re
from functools import partial
from typing import Any, Callable, List, Optional, Tuple

from fairseq.criterions import CRITERION_REGISTRY
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.optim import OPTIMIZER_REGISTRY
from fairseq.tasks import TASK_REGISTRY

from fairseq_plugins.command_line import Command
from fairseq_plugins.models.presets import ARCHITECTURES, GATED_LANGUAGE_MODELS, LANGUAGE_MODELS
from fairseq_plugins.tasks.scored_translation import EvalScorerConfig

OWN_OPTIMIZERS = {"adagrad": "damped_adagrad", "l2_adam": "l2_adam", "nt_asgd": "nt_asgd"}
"""Optimiser of this package whose flags are explained, by the optimiser of a preset."""


class KnownDefaultsFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Adds the default to the help of a flag, if it has one."""

    def _get_help_string(self, action: argparse.Action) -> Optional[str]:
        if action.default in (None, argparse.SUPPRESS):
            return action.help
        action.help = re.sub(r" \(default: [^)]*\)$", "", action.help or "")
        return super()._get_help_string(action)


def flags_parser(arch: str) -> argparse.ArgumentParser:
    """A parser of the flags of an architecture and its components, with the preset's values as defaults."""
    parser = argparse.ArgumentParser(
        usage=argparse.SUPPRESS, add_help=False, conflict_handler="resolve", formatter_class=KnownDefaultsFormatter
    )
    parts: List[Tuple[str, Callable[[Any], None]]] = [
        (f"--arch {arch}", ARCH_MODEL_REGISTRY[arch].add_args),
        ("--criterion regularized_cross_entropy", CRITERION_REGISTRY["regularized_cross_entropy"].add_args),
    ]
    if arch not in GATED_LANGUAGE_MODELS:
        parts.append(("--criterion noise_contrastive", CRITERION_REGISTRY["noise_contrastive"].add_args))
    if arch in LANGUAGE_MODELS or arch in GATED_LANGUAGE_MODELS:
        parts.append(("--task stateful_lm", TASK_REGISTRY["stateful_lm"].add_args))
        optimizer = str(ARCHITECTURES[arch].training.get("optimizer", "nt_asgd"))
        if optimizer in OWN_OPTIMIZERS:
            own = OWN_OPTIMIZERS[optimizer]
            parts.append((f"--optimizer {own}", OPTIMIZER_REGISTRY[own].add_args))
    else:
        add_scoring = partial(gen_parser_from_dataclass, dataclass_instance=EvalScorerConfig())
        parts.append(("--task scored_translation", add_scoring))
    for title, add_flags in parts:
        add_flags(parser.add_argument_group(title))
    parser.set_defaults(**ARCHITECTURES[arch].model)
    return parser


class ExplainFlags(Command):
    """Prints the flags of ``--arch``, ``--task``, ``--criterion`` and ``--optimizer`` with their meaning."""

    name = "explain_flags"
    summary = "Explain the flags that an architecture adds to fairseq-train."
    description = (
        "Those of this package's tasks, criteria and optimiser that go with it are among them, all with their "
        "defaults, but for some of fairseq's Transformer."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "arch",
            nargs="?",
            default="lstm_lm_doc",
            choices=sorted(ARCHITECTURES),
            metavar="ARCH",
            help=f"architecture (default: %(default)s), one of {', '.join(ARCHITECTURES)}",
        )

    def run(self, args: argparse.Namespace) -> None:
        print(flags_parser(args.arch).format_help())


if __name__ == "__main__":
    ExplainFlags().main()
