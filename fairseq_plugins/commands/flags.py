"""Flags of architectures: their meaning, and the training flags of a preset."""

import argparse
import re
from functools import partial
from typing import Any, Callable, List, Optional, Tuple

from fairseq.criterions import CRITERION_REGISTRY
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.optim import OPTIMIZER_REGISTRY
from fairseq.tasks import TASK_REGISTRY

from fairseq_plugins.console import Command
from fairseq_plugins.models.presets import ARCHITECTURES, GATED_LANGUAGE_MODELS, LANGUAGE_MODELS, as_arguments
from fairseq_plugins.options import UserError
from fairseq_plugins.tasks.scored_translation import EvalScorerConfig

OWN_OPTIMIZERS = {"adagrad": "damped_adagrad", "l2_adam": "l2_adam", "nt_asgd": "nt_asgd"}
"""Optimiser of a preset, and the optimiser of this package whose flags are listed for it."""


class KnownDefaultsFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Adds the default to the help of a flag, if it has one."""

    def _get_help_string(self, action: argparse.Action) -> Optional[str]:
        if action.default in (None, argparse.SUPPRESS):
            return action.help
        action.help = re.sub(r" \(default: [^)]*\)$", "", action.help or "")
        return super()._get_help_string(action)


def flags_parser(arch: str) -> argparse.ArgumentParser:
    """A parser of the flags of an architecture and its parts, with the preset's values as defaults."""
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


def _add_flags_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "arch",
        nargs="?",
        default="lstm_lm_doc",
        choices=sorted(ARCHITECTURES),
        metavar="ARCH",
        help=f"architecture (default: %(default)s), one of {', '.join(ARCHITECTURES)}",
    )
    parser.add_argument(
        "--training", action="store_true", help="print the preset's flags for fairseq-train instead, one a line"
    )


def _show_flags(args: argparse.Namespace) -> None:
    if args.training:
        training = ARCHITECTURES[args.arch].training
        if not training:
            raise UserError(f"--training: {args.arch} has no training of its own: leave it out")
        print("\n".join(as_arguments({"arch": args.arch, **training})))
    else:
        print(flags_parser(args.arch).format_help())


FLAGS = Command(
    add_arguments=_add_flags_arguments,
    run=_show_flags,
    description="""\
Lists the flags that fairseq's own --help leaves out, with their defaults (except some of fairseq's Transformer). Flags
of this package's tasks, criteria and optimizer that go with the architecture are included. The architecture itself sets
the model's hyper-parameters, so --training prints only the flags of training.""",
    example="lstm_lm_doc_ptb",
)
