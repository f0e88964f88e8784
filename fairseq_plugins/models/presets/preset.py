"""The hyper-parameters of an architecture, how ``--arch`` supplies them, and the flags that tie embeddings.

``--arch`` can supply the values of model flags only. The recipes give the flags of ``fairseq-train``
(:mod:`fairseq_plugins.recipes`), and ``fairseq-plugins flags ARCH --training`` prints them.
"""

from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any, Callable, List, Mapping, Optional, Set, Union, cast

from fairseq.models import register_model_architecture
from torch import nn

from fairseq_plugins.modules.cell import RECURRENT_CELLS
from fairseq_plugins.options import UserError, flag_of
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS, TieEmbeddings
from fairseq_plugins.output_layers.gates import OUTPUT_GATES
from fairseq_plugins.parts import option_names

Value = Union[bool, int, float, str]


@dataclass(frozen=True)
class TyingFlags:
    """The flags by which a model's users tie the output layer to the input embedding, or untie it.

    Without a flag the layer uses the embedding if it can.

    Attributes:
        requests: what each value of each flag asks for. The greatest request of several flags holds. :meth:`complete`
            sets the first flag.
        substitute: the layer that replaces the preset's if the preset's is never tied, the user asks for tying and
            names no layer. None makes that an error.
    """

    requests: Mapping[str, Mapping[Any, TieEmbeddings]] = field(default_factory=dict)
    substitute: Optional[str] = None

    def requested(self, args: Namespace) -> TieEmbeddings:
        """The greatest request in ``args``, or AUTO without a request."""
        given = [values[getattr(args, flag)] for flag, values in self.requests.items() if hasattr(args, flag)]
        return max(given, default=TieEmbeddings.AUTO)

    def complete(self, args: Namespace, preset: Mapping[str, Any]) -> None:
        """Set the flag in ``args`` if the layer leaves no choice. Called before the preset sets missing flags.

        The layer is the one in ``args``, or else the preset's or the ``substitute``.
        """
        name = getattr(args, OUTPUT_LAYERS.destination, None)
        if name is None:
            name = preset[OUTPUT_LAYERS.destination]
            is_never_tied = OUTPUT_LAYERS.find(name).tie_embeddings is TieEmbeddings.NEVER
            if is_never_tied and self.substitute is not None and self.requested(args) is TieEmbeddings.ALWAYS:
                name = self.substitute
                setattr(args, OUTPUT_LAYERS.destination, name)
        supported = OUTPUT_LAYERS.find(name).tie_embeddings
        if supported is not TieEmbeddings.AUTO:
            flag, values = next(iter(self.requests.items()))
            vars(args).setdefault(flag, next(value for value, request in values.items() if request is supported))

    def shared_weight(self, args: Namespace, embedding: nn.Embedding) -> Optional[nn.Parameter]:
        """The matrix of the input embedding if the output layer that ``args`` name uses it, else None.

        Raises:
            UserError: if the layer does not support what ``args`` ask for.
        """
        layer = OUTPUT_LAYERS.find(args.output_layer)
        supported, requested = layer.tie_embeddings, self.requested(args)
        if {supported, requested} == {TieEmbeddings.NEVER, TieEmbeddings.ALWAYS}:
            given = {flag: getattr(args, flag, None) for flag in self.requests}
            asking = [flag for flag, value in given.items() if self.requests[flag].get(value) is requested]
            texts = [flag_of(x) + ("" if given[x] is True else f" {given[x]}") for x in asking]
            has, other = ("a", "tied") if supported is TieEmbeddings.NEVER else ("no", "full")
            raise UserError(
                f"--output-layer {layer.name} has {has} matrix of its own: take --output-layer {other}, or leave out "
                + " and ".join(texts)
            )
        return None if TieEmbeddings.NEVER in (supported, requested) else cast(nn.Parameter, embedding.weight)


@dataclass(frozen=True)
class Preset:
    """Hyper-parameters of one architecture.

    fairseq applies the current preset to the flags of an older checkpoint. Never add a key that changes the model to a
    preset that checkpoints may have been trained with.

    Attributes:
        model: model flags.
        output_layers: flags that go with an output layer in this architecture, by layer. The flags of the
            preset's own layer are in ``model`` too. The flags of another layer are set if the user chooses it.
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


def as_arguments(flags: Mapping[str, Value]) -> List[str]:
    """Flags as ``fairseq-train`` reads them, ``--name=value``, and ``--name`` for True."""
    return [f"--{name}" if value is True else f"--{name}={value}" for name, value in flags.items()]
