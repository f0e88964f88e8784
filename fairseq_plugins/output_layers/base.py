"""Base class and registry of output layers, and their precision.

Shapes: B batch, T time, D_n width of layer n (D_0: embedding), N index of the last layer, V vocabulary.
"""

import logging
from argparse import Namespace
from dataclasses import replace
from enum import IntEnum
from typing import Optional, Sequence, Tuple

import torch
from fairseq.data import Dictionary
from torch import Tensor, nn

from fairseq_plugins.modules.cell import State
from fairseq_plugins.ops.logit_gate import LogitGate
from fairseq_plugins.ops.matmul import has_native_bfloat16
from fairseq_plugins.ops.mixture_chunk import Interpolation
from fairseq_plugins.options import UserError, check_choice, choices
from fairseq_plugins.output_layers.copying import Copying, NoCopying
from fairseq_plugins.output_layers.gates import OUTPUT_GATES, NoGate, OutputGate
from fairseq_plugins.output_layers.scores import DecoderStates, Noise, Scores
from fairseq_plugins.parts import Part, Registry

logger = logging.getLogger(__name__)


class TieEmbeddings(IntEnum):
    """Whether an output layer uses the input embedding as its matrix, as the layer supports or the user requests it."""

    NEVER = 0
    AUTO = 1
    ALWAYS = 2


SUM_TOLERANCE = 0.1
"""Rounding of a sum of probabilities, even in 16 bits."""


class OutputLayer(Part, nn.Module):
    """Turns decoder states into a distribution over the vocabulary.

    To add a value of ``--output-layer``, a subclass registers itself with ``OUTPUT_LAYERS.register``, declares its
    flags in the dataclass ``Options`` and implements :meth:`log_probs`. A layer that can score targets without a tensor
    (B, T, V) also overrides :meth:`target_loss`.

    :func:`build_output_layer` calls the constructor with keywords: ``dictionary`` (fairseq's, of size V),
    ``layer_widths`` (D_0 .. D_N), ``shared_weight`` (the (V, D_0) input embedding if it is tied, else None) and
    ``options`` (an instance of ``Options``). It then sets :attr:`layer_widths` and :attr:`gate`.
    Models with attention set :attr:`copying`.

    Attributes:
        tie_embeddings: whether the layer uses the input embedding as its matrix: AUTO if the model decides.
        takes_gate: whether the layer has logits that a gate can multiply. Without them :attr:`gate` is none.
        layer_widths: D_0 .. D_N.
        gate: computes the factors of the logits.
        copying: gives source words an extra probability.
    """

    tie_embeddings = TieEmbeddings.NEVER
    takes_gate = False
    gate: OutputGate
    layer_widths: Sequence[int]
    copying: Copying
    _is_checked = False

    def __init__(self):
        super().__init__()
        self.gate = NoGate()
        self.copying = NoCopying()

    def gate_after(self, states: DecoderStates, gate_state: Optional[State]) -> Tuple[Optional[LogitGate], State]:
        """The gate of these states and the gate's new state, given its old state, or None at the start."""
        return self.gate(states, self.gate.initial_state(states.layers[0]) if gate_state is None else gate_state)

    def log_probs(self, states: DecoderStates, gate: Optional[LogitGate] = None) -> Scores:
        """The distribution at every position."""
        raise NotImplementedError

    def log_probs_for_smoothing(self, states: DecoderStates, gate: Optional[LogitGate] = None) -> Tuple[Scores, Tensor]:
        """The distribution and the uniform log probability mean_v(log P(v)), (B, T), which label smoothing raises.

        A mixture averages the uniform log probabilities of its softmaxes with its prior.
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
        """Loss and NLL of given targets, as :meth:`forward` defines them.

        A model that copies source words gives the ``interpolation`` of the targets' probabilities.
        """
        if label_smoothing > 0:
            scores, uniform_log_prob = self.log_probs_for_smoothing(states, gate)
        else:
            scores, uniform_log_prob = self.log_probs(states, gate), 0.0
        log_probs = scores.log_probs
        assert log_probs is not None
        self._check_sum(log_probs)
        ignored = None if token_weights is None else token_weights == 0
        if ignored is not None:
            target = target.masked_fill(ignored, 0)
        nll = -log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        if interpolation is not None:
            nll = interpolation.nll(nll)
        loss = (1 - label_smoothing) * nll - label_smoothing * uniform_log_prob
        if token_weights is not None and ignored is not None:
            loss = loss.masked_fill(ignored, 0) * token_weights.detach()
            nll = nll.masked_fill(ignored, 0)
        return replace(scores, log_probs=None, loss=loss.sum(), nll=nll.detach())

    def _check_sum(self, log_probs: Tensor) -> None:
        """Check the first of all probabilities (B, T, V): a layer that forgets to normalise has no perplexity."""
        if not self._is_checked:
            self._is_checked = True
            total = float(log_probs[0, 0].detach().float().logsumexp(dim=-1).exp())
            if abs(total - 1) > SUM_TOLERANCE:
                raise UserError(
                    f"--output-layer {self.name}: the probabilities of a position sum to {total:.3g}, not 1: normalise "
                    "log_probs, such as by log_softmax"
                )

    def noise_loss(
        self,
        states: DecoderStates,
        target: Tensor,
        gate: Optional[LogitGate] = None,
        *,
        noise: Noise,
        token_weights: Optional[Tensor] = None,
    ) -> Scores:
        """Loss of telling the targets from noise words (noise-contrastive estimation), without a sum over V.

        Raises:
            UserError: if the layer cannot compute it, as here.
        """
        others = [name for name, layer in OUTPUT_LAYERS.items() if layer.noise_loss is not OutputLayer.noise_loss]
        raise UserError(
            f"--criterion noise_contrastive needs logits of single words, which --output-layer {self.name} does not "
            f"have: take {', '.join(sorted(others))}, or train with --criterion regularized_cross_entropy"
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
        """The distribution at every position, or the loss of ``target`` (B, T) if it is given.

        The loss of a token is (1 - e) NLL - e mean_v(log P(v)) with e = ``label_smoothing``. The second term is
        :meth:`log_probs_for_smoothing`; with copying it still reads the layer's own P. The losses are summed with
        ``token_weights`` (B, T), by default 1, which are 0 at padding. With ``noise`` the loss is :meth:`noise_loss`.
        ``gate_state`` is taken from the :class:`Scores` of the preceding tokens, None at the start.

        Raises:
            UserError: on noise with copying, and as :meth:`noise_loss`.
        """
        gate, gate_state = self.gate_after(states, gate_state)
        if target is None:
            scores = self.copying.blended(self.log_probs(states, gate), states)
        elif noise is not None:
            if self.copying.name != NoCopying.name:
                raise UserError(
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
    """Build the layer that ``args.output_layer`` names, with its gate. Absent flags take their defaults.

    Raises:
        UserError: if the layer or gate does not exist, the layer takes no gate, or an option does not fit the model or
            belongs to another layer or gate.
    """
    parts = dict(dictionary=dictionary, layer_widths=layer_widths)
    layer = OUTPUT_LAYERS.build(args, shared_weight=shared_weight, **parts)
    layer.layer_widths = layer_widths
    layer.gate = OUTPUT_GATES.build(args, **parts)
    if layer.gate.name != NoGate.name:
        check_takes_gate(layer, gate=layer.gate.name)
    return layer


def check_takes_gate(layer: OutputLayer, *, gate: str) -> None:
    """Check that the layer has logits that the gate can multiply.

    Raises:
        UserError: if it has none.
    """
    if not layer.takes_gate:
        raise UserError(
            f"--output-gate {gate}: --output-layer {layer.name} has no logits that a gate could multiply; leave the "
            "gate out or take another --output-layer"
        )


OUTPUT_PRECISIONS = ["float32", "bfloat16", "auto"]
"""Values of ``--output-precision``."""
OutputPrecisionName = choices(OUTPUT_PRECISIONS)


class OutputPrecision(nn.Module):
    """The dtype in which an output layer computes logits and probabilities, apart from the rest of the model.

    Training uses the precision of the flag. "auto" is bfloat16 on processors that multiply in it natively, else
    float32. Scores and beam search are in float32, so that all processors find the same, unless :meth:`score_in` is
    called.

    Each ``for_*`` method returns torch.bfloat16, or None for the dtype of the model.

    Args:
        name: a value of ``--output-precision``; "float32" leaves the dtype of the model as it is.

    Attributes:
        scores_in: the value of ``--output-precision`` for scores and search, or None for the dtype of the model.

    Raises:
        UserError: if there is no such value.
    """

    place: Tensor

    def __init__(self, name: str):
        super().__init__()
        self.name = check_choice(name, OUTPUT_PRECISIONS, flag="--output-precision")
        self.scores_in: Optional[str] = None
        self._is_logged = False
        self.register_buffer("place", torch.empty(0), persistent=False)  # moves with the model, to tell its device

    def score_in(self, name: str) -> None:
        """Compute scores and search in the precision ``name``.

        Raises:
            UserError: if ``--output-precision`` has no such value, or the processor has no such products.
        """
        self._dtype(check_choice(name, OUTPUT_PRECISIONS, flag="--output-precision"))
        self.scores_in = name

    def for_loss(self) -> Optional[torch.dtype]:
        """The precision of training in training mode, and of scores in evaluation mode.

        Raises:
            UserError: if the processor has no products in bfloat16.
        """
        if not self.training:
            return self.for_scores()
        dtype = self._dtype(self.name)
        if not self._is_logged:
            self._is_logged = True
            device, is_native = self.place.device, has_native_bfloat16(self.place.device)
            has = f"this {device.type} has {'' if is_native else 'no '}matrix products in bfloat16"
            if self.place.dtype == torch.bfloat16 and not is_native:
                logger.warning(f"--bf16: {has}. Leave it out: training may be thirty times as fast")
            elif self.name == "auto":
                logger.info(f"--output-precision auto: {'bfloat16' if is_native else 'float32'} ({has})")
        return dtype

    def for_scores(self) -> Optional[torch.dtype]:
        """The dtype of the model, unless :meth:`score_in` overrides it."""
        return self._dtype(self.scores_in)

    def _dtype(self, name: Optional[str]) -> Optional[torch.dtype]:
        if name in (None, "float32"):
            return None
        device = self.place.device
        if has_native_bfloat16(device):
            return torch.bfloat16
        if name == "bfloat16":
            raise UserError(
                f"--output-precision bfloat16: this {device.type} has no matrix products in bfloat16; give "
                "--output-precision float32"
            )
        return None
