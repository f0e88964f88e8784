"""The contract between decoders and output layers, and the registry of output layers.

Shapes: B batch, T time, D_n width of layer n (D_0: embedding), N index of the last layer, V vocabulary.
"""

from argparse import Namespace
from dataclasses import replace
from enum import Enum
from typing import Callable, Optional, Sequence, Tuple

from fairseq.data import Dictionary
from torch import Tensor, nn

from fairseq_plugins.flags.registry import Component, Registry
from fairseq_plugins.modules.recurrent_state import State
from fairseq_plugins.modules.saved_setting import SavesSettings
from fairseq_plugins.ops.interpolation import Interpolation
from fairseq_plugins.ops.logit_gate import LogitGate
from fairseq_plugins.output_layers.copying import Copying, NoCopying
from fairseq_plugins.output_layers.decoder_states import DecoderStates
from fairseq_plugins.output_layers.gate import NoGate, OutputGate, build_output_gate
from fairseq_plugins.output_layers.noise import Noise
from fairseq_plugins.output_layers.scores import Scores


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

    :func:`build_output_layer` calls the constructor with keywords: ``dictionary``, the host's, whose size is V,
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
