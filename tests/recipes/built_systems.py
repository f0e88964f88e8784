"""Models of recipes, from the command lines that train them."""

from argparse import Namespace
from typing import Sequence

from builders import make_task, tiny_base_flags
from fairseq import options
from fairseq.models import ARCH_MODEL_REGISTRY
from torch import nn

from fairseq_plugins.models.presets import GATED_LANGUAGE_MODELS
from fairseq_plugins.recipes import Recipe, training_arguments


def build_system(recipe: Recipe, system: str, *, vocab_size: int, word: str = "w") -> nn.Module:
    """The model of a system as fairseq reads its command line; gates stand on tiny base models.

    ``word`` is among the ``vocab_size``.
    """
    arch = str(recipe.flags(system)["arch"])
    base, is_gate = recipe.system(system).base, arch in GATED_LANGUAGE_MODELS
    paths = [f"{n}.pt" for n in range(1 if base is None else base.num)]
    more = [f"--{'base-model' if base is None else base.flag}={':'.join(paths)}"] if is_gate or base else []
    args = as_fairseq_reads(recipe, system, more=more)
    if is_gate:
        args.base_model_flags = [tiny_base_flags("tied") for _ in paths]
    task = make_task(vocab_size - 1)
    task.target_dictionary.add_symbol(word)
    return ARCH_MODEL_REGISTRY[arch].build_model(args, task)


def as_fairseq_reads(recipe: Recipe, system: str, *, more: Sequence[str] = ()) -> Namespace:
    """What fairseq-train makes of the command line of a system."""
    arguments = training_arguments(recipe, system, data="data", save_dir="save", more=more)
    typed = [argument for argument in arguments if not argument.startswith("--user-dir")]
    return options.parse_args_and_arch(options.get_training_parser(), input_args=typed)
