"""What the papers' settings consist of, and how an architecture supplies them.

``--arch`` supplies the values of model flags. Those of ``fairseq-train`` it cannot supply: for language models
``python -m fairseq_plugins.cli.preset_flags ARCH`` prints them for a command line, as the recipes do; those of
translation stand in scripts/recipes/translation.
"""

from argparse import Namespace
from dataclasses import dataclass, field
from typing import Dict, Union

from fairseq_plugins.output_layers.base import OUTPUT_LAYERS, option_names

Value = Union[int, float, str]


@dataclass(frozen=True)
class Preset:
    """Hyper-parameters of one architecture.

    Attributes:
        model: model flags.
        training: flags of ``fairseq-train`` for the main training.
        fine_tuning: those that differ when the best model is trained on with averaging from the start.
    """

    model: Dict[str, Value]
    training: Dict[str, Value] = field(default_factory=dict)
    fine_tuning: Dict[str, Value] = field(default_factory=dict)


def apply_preset(preset: Preset, args: Namespace) -> None:
    """Set the model flags of a preset that ``args`` does not hold yet.

    Where another output layer was chosen, options that it does not have are left out.
    """
    chosen = getattr(args, "output_layer", preset.model["output_layer"])
    foreign = option_names() - option_names(OUTPUT_LAYERS[chosen].Options) if chosen in OUTPUT_LAYERS else set()
    for flag, value in preset.model.items():
        if not hasattr(args, flag) and flag not in foreign:
            setattr(args, flag, value)
