"""Models of recipes, from the command lines that train them."""

from builders import make_task, tiny_base_flags
from fairseq import options
from fairseq.models import ARCH_MODEL_REGISTRY
from torch import nn

from fairseq_plugins.recipes import Recipe, training_arguments
from fairseq_plugins.recipes.recipe import GATED


def build_system(recipe: Recipe, system: str, *, vocab_size: int) -> nn.Module:
    """The model of a system as the host reads its command line; gates stand on a tiny base model."""
    arch = str(recipe.flags(system)["arch"])
    more = ["--base-model=base.pt"] if arch.startswith(GATED) else []
    arguments = training_arguments(recipe, system, data="data", save_dir="save", more=more)
    typed = [argument for argument in arguments if not argument.startswith("--user-dir")]
    args = options.parse_args_and_arch(options.get_training_parser(), input_args=typed)
    if more:
        args.base_model_flags = [tiny_base_flags("tied")]
    return ARCH_MODEL_REGISTRY[arch].build_model(args, make_task(vocab_size))
