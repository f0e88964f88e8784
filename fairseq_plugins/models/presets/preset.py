"""The hyper-parameters of an architecture, and how ``--arch`` supplies them.

``--arch`` can supply the values of model flags only. The recipes give the flags of ``fairseq-train``
(:mod:`fairseq_plugins.recipes`), and ``fairseq-plugins flags ARCH --training`` prints them.
"""

from argparse import Namespace
from dataclasses import dataclass, field
from typing import Callable, List, Mapping, Optional, Set, Union

from fairseq.models import register_model_architecture

from fairseq_plugins.modules.cell import RECURRENT_CELLS
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS, TyingFlags
from fairseq_plugins.output_layers.gates import OUTPUT_GATES
from fairseq_plugins.parts import option_names

Value = Union[bool, int, float, str]


@dataclass(frozen=True)
class Preset:
    """Hyper-parameters of one architecture.

    fairseq applies the current preset to the flags of an older checkpoint. Never add a key that changes the model to a
    preset that checkpoints may have been trained with.

    Attributes:
        model: model flags.
        output_layers: flags that go with an output layer in this architecture, by layer. Those of the preset's own
            layer are in ``model`` too. Those of another layer are set if the user chooses it.
        tying: the flags that tie the output layer to the embedding, or None if there are none.
        training: flags of ``fairseq-train`` for the main run.
        fine_tuning: flags that differ when the best model is fine-tuned with averaging from the start, or None if the
            paper does not fine-tune.
    """

    model: Mapping[str, Value]
    output_layers: Mapping[str, Mapping[str, Value]] = field(default_factory=dict, kw_only=True)
    tying: Optional[TyingFlags] = field(default=None, kw_only=True)
    training: Mapping[str, Value] = field(default_factory=dict)
    fine_tuning: Optional[Mapping[str, Value]] = None

    @property
    def averaging_flags(self) -> Mapping[str, Value]:
        """Flags of ``fairseq-train`` that differ in the paper's fine-tuning, which must exist."""
        assert self.fine_tuning is not None
        return {"averaging": "immediate", **self.fine_tuning}


def register_presets(
    model: str, presets: Mapping[str, Preset], *, defaults: Callable[[Namespace], object] = lambda args: None
) -> None:
    """Register the architectures of a model with fairseq. ``defaults`` sets the flags that a preset leaves open."""
    for name, preset in presets.items():

        def apply(args: Namespace, preset: Preset = preset) -> None:
            apply_preset(preset, args)
            defaults(args)

        register_model_architecture(model, name)(apply)


def apply_preset(preset: Preset, args: Namespace) -> None:
    """Set the model flags of a preset that ``args`` does not hold yet.

    If ``args`` holds another output layer, gate or recurrent cell, the options of the preset's own part are left
    out. Options that another cell shares and uses are kept, because they regularise both cells alike. Another output
    layer gets its flags of ``preset.output_layers`` instead of those of the preset's own layer. If it leaves no choice,
    the flags that tie it to the embedding follow.
    """
    if preset.tying is not None:
        preset.tying.complete(args, preset.model)
    left_out: Set[str] = set()
    own_layer = preset.model.get(OUTPUT_LAYERS.destination)
    layer = getattr(args, OUTPUT_LAYERS.destination, own_layer)
    if layer != own_layer:
        left_out |= set(preset.output_layers.get(str(own_layer), {}))
    for registry in (OUTPUT_LAYERS, OUTPUT_GATES, RECURRENT_CELLS):
        own = preset.model.get(registry.destination)
        chosen = getattr(args, registry.destination, own)
        if chosen != own:
            left_out |= registry.all_option_names()
            if registry is RECURRENT_CELLS:
                cell = registry.find(str(chosen))
                unused = cell.unused_options(Namespace(**{**preset.model, **vars(args)}))
                left_out -= option_names(cell.Options) - unused.keys()
    values = {flag: value for flag, value in preset.model.items() if flag not in left_out}
    if layer != own_layer:
        values.update(preset.output_layers.get(str(layer), {}))
    for flag, value in values.items():
        if not hasattr(args, flag):
            setattr(args, flag, value)


def command_line(flags: Mapping[str, Value]) -> List[str]:
    """Flags as ``fairseq-train`` reads them, ``--name=value``, and ``--name`` for True."""
    return [f"--{name}" if value is True else f"--{name}={value}" for name, value in flags.items()]
