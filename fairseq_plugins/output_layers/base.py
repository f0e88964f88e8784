"""The contract between decoders and output layers, and the registry of output layers.

Shapes: B batch, T time, D_n width of layer n (D_0: embedding), N index of the last layer, V vocabulary.
"""

import logging
from argparse import Namespace
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple, Union, cast

import torch
from fairseq.data import Dictionary
from torch import Tensor, nn

from fairseq_plugins.components import Component, Registry
from fairseq_plugins.modules.cell import State
from fairseq_plugins.modules.layers import SavesSettings
from fairseq_plugins.ops.logit_gate import Interpolation, LogitGate
from fairseq_plugins.ops.matmul import bfloat16_gain, has_native_bfloat16, is_bfloat16_faster
from fairseq_plugins.options import check_choice, choices
from fairseq_plugins.output_layers.copying import Copying, NoCopying
from fairseq_plugins.output_layers.gates import NoGate, OutputGate, build_output_gate
from fairseq_plugins.output_layers.scores import DecoderStates, Noise, Scores


class Sharing(Enum):
    """Whether an output layer uses the input embedding as its matrix."""

    NEVER = "it has a matrix of its own, or none"
    POSSIBLE = "it uses the embedding where the model shares it, and otherwise has a matrix of its own"
    REQUIRED = "it has no matrix but the embedding"


class OutputLayer(Component, SavesSettings):
    """Turns decoder states into a distribution over the vocabulary.

    A subclass registers itself with ``OUTPUT_LAYERS.register``, names its flags in the dataclass
    ``Options`` and implements :meth:`log_probs`; it then is a value of ``--output-layer``. A layer
    that can score targets without building (B, T, V) overrides :meth:`target_loss`, which is given an
    ``interpolation`` where a model copies source words, and only there.

    :func:`build_output_layer` calls the constructor with keywords: ``dictionary``, fairseq's, whose size is V,
    ``layer_widths`` D_0 .. D_N, ``shared_weight``, the (V, D_0) input embedding where the model shares it or else None,
    and ``options``, an instance of ``Options``. It adds the gate. Models with attention set :attr:`copying`.

    Attributes:
        sharing: whether the layer uses the input embedding.
        takes_gate: whether the layer has logits that a gate can multiply; otherwise :attr:`gate` is none.
        gate: what makes the gates of the logits.
        copying: what gives source words a probability of their own.
    """

    sharing = Sharing.NEVER
    takes_gate = False
    gate: OutputGate
    copying: Copying

    def __init__(self):
        super().__init__()
        self.save_setting("layer_name", flag=OUTPUT_LAYERS.flag, value=self.name)
        self.gate = NoGate()
        self.copying = NoCopying()

    def gate_after(self, states: DecoderStates, gate_state: Optional[State]) -> Tuple[Optional[LogitGate], State]:
        """The gate of these states and its state after them; ``gate_state`` is that before, None at the start."""
        return self.gate(states, self.gate.initial_state(states.layers[0]) if gate_state is None else gate_state)

    def log_probs(self, states: DecoderStates, gate: Optional[LogitGate] = None) -> Scores:
        """The distribution at every position."""
        raise NotImplementedError

    def spread_log_probs(self, states: DecoderStates, gate: Optional[LogitGate] = None) -> Tuple[Scores, Tensor]:
        """The distribution, and mean_v(log P(v)), (B, T), which label smoothing raises.

        Of a mixture it is the prior's mean of those of its softmaxes.
        """
        scores = self.log_probs(states, gate)
        assert scores.log_probs is not None
        return scores, scores.log_probs.mean(dim=-1)

    def target_loss(
        self,
        states: DecoderStates,
        target: Tensor,
        gate: Optional[LogitGate] = None,
        *,
        token_weights: Optional[Tensor] = None,
        label_smoothing: float = 0.0,
        interpolation: Optional[Interpolation] = None,
    ) -> Scores:
        """Loss and NLL of given targets, their probabilities interpolated; see :meth:`forward`."""
        if label_smoothing > 0:
            scores, mean_log_prob = self.spread_log_probs(states, gate)
        else:
            scores, mean_log_prob = self.log_probs(states, gate), 0.0
        log_probs = scores.log_probs
        assert log_probs is not None
        ignored = None if token_weights is None else token_weights == 0
        if ignored is not None:
            target = target.masked_fill(ignored, 0)
        nll = -log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        if interpolation is not None:
            nll = interpolation.nll(nll)
        loss = (1 - label_smoothing) * nll - label_smoothing * mean_log_prob
        if token_weights is not None and ignored is not None:
            loss = loss.masked_fill(ignored, 0) * token_weights.detach()
            nll = nll.masked_fill(ignored, 0)
        return replace(scores, log_probs=None, loss=loss.sum(), nll=nll.detach())

    def noise_loss(
        self,
        states: DecoderStates,
        target: Tensor,
        gate: Optional[LogitGate] = None,
        *,
        noise: Noise,
        token_weights: Optional[Tensor] = None,
    ) -> Scores:
        """The loss by which the targets are told from noise, without any sum over all words.

        Raises:
            ValueError: unless a subclass says otherwise.
        """
        others = [name for name, layer in OUTPUT_LAYERS.items() if layer.noise_loss is not OutputLayer.noise_loss]
        raise ValueError(
            f"--criterion noise_contrastive needs logits of single words, which --output-layer {self.name} has not: "
            f"take {', '.join(sorted(others))}, or train with --criterion regularized_cross_entropy"
        )

    def forward(
        self,
        states: DecoderStates,
        target: Optional[Tensor] = None,
        *,
        token_weights: Optional[Tensor] = None,
        label_smoothing: float = 0.0,
        noise: Optional[Noise] = None,
        gate_state: Optional[State] = None,
    ) -> Scores:
        """The distribution at every position, or with ``target`` (B, T) the loss.

        The loss of a token is (1 - e) NLL + e mean_v(-log P(v)) with e = ``label_smoothing``, where a mixture of
        softmaxes takes the mean of each and the prior's mean of these; the losses are summed with ``token_weights``
        (B, T), by default one, 0 at padding. With copying the mean remains that of the layer's own P. With ``noise``
        it is that of :meth:`noise_loss` instead. ``gate_state`` is that of the :class:`Scores` of the tokens before,
        None at the start.

        Raises:
            ValueError: on noise with copying, and as :meth:`noise_loss`.
        """
        gate, gate_state = self.gate_after(states, gate_state)
        if target is None:
            scores = self.copying.blended(self.log_probs(states, gate), states)
        elif noise is not None:
            if self.copying.name != NoCopying.name:
                raise ValueError(
                    f"--criterion noise_contrastive has no copying: leave --copying {self.copying.name} out, or train "
                    "with --criterion regularized_cross_entropy"
                )
            scores = self.noise_loss(states, target, gate, noise=noise, token_weights=token_weights)
        else:
            scores = self.target_loss(
                states,
                target,
                gate,
                token_weights=token_weights,
                label_smoothing=label_smoothing,
                interpolation=self.copying.interpolation(states, target),
            )
        return replace(scores, gate_state=gate_state)


OUTPUT_LAYERS: Registry[OutputLayer] = Registry("--output-layer", help="how states become probabilities")
"""Values of ``--output-layer``."""


def build_output_layer(
    args: Namespace,
    *,
    dictionary: Dictionary,
    layer_widths: Sequence[int],
    shared_weight: Optional[nn.Parameter],
) -> OutputLayer:
    """Build the layer that ``args.output_layer`` names with its gate; flags that are absent take their defaults.

    Raises:
        ValueError: if the layer or gate does not exist, they do not go together, or an option does not fit the model or
            belongs to others.
    """
    options = OUTPUT_LAYERS.read_options(args)
    layer_class: Callable[..., OutputLayer] = OUTPUT_LAYERS[args.output_layer]
    layer = layer_class(dictionary=dictionary, layer_widths=layer_widths, shared_weight=shared_weight, options=options)
    layer.gate = build_output_gate(args, dictionary=dictionary, layer_widths=layer_widths)
    if layer.gate.name != NoGate.name:
        check_takes_gate(layer, gate=layer.gate.name)
    return layer


def check_takes_gate(layer: OutputLayer, *, gate: str) -> None:
    """Refuse a gate on a layer without logits.

    Raises:
        ValueError: if the layer has none.
    """
    if not layer.takes_gate:
        raise ValueError(
            f"--output-gate {gate}: --output-layer {layer.name} has no logits that a gate could multiply; leave the "
            "gate out or take another --output-layer"
        )


# Whether the output layer of a model uses the input embedding: what the layer allows and what the user asks for.


SharingValue = Union[str, bool]


class Wish(IntEnum):
    """What the user asks for."""

    SEPARATE = 0
    WHERE_POSSIBLE = 1
    SHARED = 2


@dataclass(frozen=True)
class SharingFlags:
    """The flags of a model that say whether the output layer uses the input embedding; without any it does if it may.

    Attributes:
        wishes: what the values of each flag ask for; of several flags the greatest wish holds. The first flag is the
            one that :meth:`complete` sets.
        substitute: the layer that is taken where sharing is asked for, no layer is named, and the preset's never
            shares; None where that is an error.
        cannot_share: the error where sharing is asked for and the ``{layer}`` that was named never shares.
        must_share: the error where a separate matrix is asked for and the ``{layer}`` has none.
    """

    wishes: Mapping[str, Mapping[SharingValue, Wish]] = field(default_factory=dict)
    substitute: Optional[str] = None
    cannot_share: str = ""
    must_share: str = ""

    def wish(self, args: Namespace) -> Optional[Wish]:
        """What ``args`` ask for; None where they leave it open."""
        given = [values[getattr(args, flag)] for flag, values in self.wishes.items() if hasattr(args, flag)]
        return max(given, default=None)

    def complete(self, args: Namespace, preset: Mapping[str, Any]) -> None:
        """Set the flag in ``args`` where the layer leaves no choice; called before the preset sets what is left open.

        Where no layer is named, it is the preset's, or where sharing is asked for in vain the ``substitute``.
        """
        name = getattr(args, OUTPUT_LAYERS.destination, None)
        if name is None:
            name = preset[OUTPUT_LAYERS.destination]
            never_shares = OUTPUT_LAYERS.find(name).sharing is Sharing.NEVER
            if never_shares and self.substitute is not None and self.wish(args) is Wish.SHARED:
                name = self.substitute
                setattr(args, OUTPUT_LAYERS.destination, name)
        only_wish = {Sharing.NEVER: Wish.SEPARATE, Sharing.REQUIRED: Wish.SHARED}.get(OUTPUT_LAYERS.find(name).sharing)
        if only_wish is not None:
            flag, value = self._setting(only_wish)
            vars(args).setdefault(flag, value)

    def shares(self, args: Namespace) -> bool:
        """Whether the output layer that ``args`` name uses the embedding.

        Raises:
            ValueError: if the layer cannot do as ``args`` ask.
        """
        layer = OUTPUT_LAYERS.find(args.output_layer)
        wish = self.wish(args)
        if layer.sharing is Sharing.NEVER and wish is Wish.SHARED:
            raise ValueError(self.cannot_share.format(layer=layer.name))
        if layer.sharing is Sharing.REQUIRED and wish is Wish.SEPARATE:
            raise ValueError(self.must_share.format(layer=layer.name))
        return layer.sharing is not Sharing.NEVER and wish is not Wish.SEPARATE

    def shared_weight(self, args: Namespace, embedding: nn.Embedding) -> Optional[nn.Parameter]:
        """The matrix of the input embedding if the output layer uses it, as :meth:`shares` says, or None.

        Raises:
            ValueError: if the layer cannot do as ``args`` ask.
        """
        return cast(nn.Parameter, embedding.weight) if self.shares(args) else None

    def _setting(self, wish: Wish) -> Tuple[str, SharingValue]:
        flag, values = next(iter(self.wishes.items()))
        return flag, next(value for value, meaning in values.items() if meaning is wish)


# Precision of the output layer, apart from that of the rest of a model.


logger = logging.getLogger(__name__)

OUTPUT_PRECISIONS = ["float32", "bfloat16", "auto"]
"""Values of ``--output-precision``."""
OutputPrecisionName = choices(OUTPUT_PRECISIONS)


class OutputPrecision(nn.Module):
    """In which type an output layer holds and multiplies logits and probabilities.

    Training takes the precision of the flag, and "auto" what is faster on the device of the first update. A checkpoint
    keeps that choice, and "auto" keeps a checkpoint's. A search takes the same where the processor has such products,
    and else float32. Scores are in float32. Where :attr:`scores_in` is set, both follow it.

    Args:
        name: a value of ``--output-precision``; "float32" leaves the precision of the model as it is.

    Attributes:
        scores_in: a value of ``--output-precision`` that scores and searches were asked to take, or None.
        chosen: what "auto" took: above zero bfloat16, below zero float32, zero nothing yet. An average over checkpoints
            or updates has the sign of those that chose.

    Raises:
        ValueError: if there is no such value.
    """

    chosen: Tensor

    def __init__(self, name: str):
        super().__init__()
        self.name = check_choice(name, OUTPUT_PRECISIONS, flag="--output-precision")
        self.scores_in: Optional[str] = None
        self._choice: Optional[str] = None
        self.register_buffer("chosen", torch.zeros(()))

    def score_in(self, name: Optional[str]) -> None:
        """Compute scores and search in the precision ``name``, a value of ``--output-precision``.

        None leaves it to the training again.

        Raises:
            ValueError: if there is no such value, or the processor has no such products.
        """
        if name is not None:
            self._required(check_choice(name, OUTPUT_PRECISIONS, flag="--output-precision"))
        self.scores_in = name

    def for_training(self) -> Optional[torch.dtype]:
        """torch.bfloat16, or None for the precision of the model.

        Raises:
            ValueError: if the processor has no products in bfloat16.
        """
        if self.name == "auto" and self._kept_choice() is None:
            self._choose()
        return self._required(self._trained_in())

    def for_loss(self) -> Optional[torch.dtype]:
        """That of :meth:`for_training` in training mode, and of :meth:`for_scores` in evaluation mode."""
        return self.for_training() if self.training else self.for_scores()

    def for_search(self) -> Optional[torch.dtype]:
        """torch.bfloat16 where the processor has such products, or None for the precision of the model.

        It is :meth:`for_scores` where :meth:`score_in` was asked for a precision.
        """
        if self.scores_in is not None:
            return self.for_scores()
        native = self._trained_in() == "bfloat16" and has_native_bfloat16(self.chosen.device)
        return torch.bfloat16 if native else None

    def for_scores(self) -> Optional[torch.dtype]:
        """torch.bfloat16, or None for the precision of the model."""
        if self.scores_in == "auto":
            return torch.bfloat16 if is_bfloat16_faster(self.chosen.device) else None
        return self._required(self.scores_in)

    def _required(self, name: Optional[str]) -> Optional[torch.dtype]:
        if name != "bfloat16":
            return None
        device = self.chosen.device
        if not has_native_bfloat16(device):
            raise ValueError(
                f"--output-precision bfloat16: this {device.type} has no matrix products in bfloat16; give "
                "--output-precision float32"
            )
        return torch.bfloat16

    def _trained_in(self) -> Optional[str]:
        """float32 or bfloat16, or None where "auto" has not chosen."""
        return self.name if self.name != "auto" else self._kept_choice()

    def _kept_choice(self) -> Optional[str]:
        if self._choice is None and self.chosen != 0:
            self._choice = "bfloat16" if self.chosen > 0 else "float32"
        return self._choice

    def _choose(self) -> None:
        """What is faster here; one choice for all processes."""
        device = self.chosen.device
        self.chosen.fill_(1 if is_bfloat16_faster(device) else -1)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.broadcast(self.chosen, 0)
        gain = f"{bfloat16_gain(device):.1f} times as fast" if has_native_bfloat16(device) else "not native"
        logger.info(f"--output-precision auto: {self._kept_choice()} (products in bfloat16 are {gain} here)")

    def _load_from_state_dict(self, state_dict: Dict[str, Tensor], prefix: str, *args: Any, **kwargs: Any) -> None:
        self._choice = None
        state_dict.setdefault(f"{prefix}chosen", torch.zeros_like(self.chosen))  # from before the flag
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
