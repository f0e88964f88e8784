"""Output layers whose logits are a matrix product; their loss never holds the logits of all tokens.

Shapes: B batch, T time, J experts, C width of latent vectors and labels, V vocabulary.
"""

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple

import torch
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from fairseq_plugins.modules.layers import DropsAtRandom
from fairseq_plugins.ops.logit_gate import Interpolation, LogitGate, apply_gate
from fairseq_plugins.ops.matmul import autocast_dtype, is_recorded
from fairseq_plugins.ops.mixture_distribution import mixture_log_probs, mixture_log_probs_from_latents
from fairseq_plugins.ops.mixture_loss import mixture_nll
from fairseq_plugins.options import OnOff, check_positive, choices
from fairseq_plugins.output_layers.base import OutputLayer, OutputPrecision, OutputPrecisionName, Sharing
from fairseq_plugins.output_layers.scores import DecoderStates, Gradients, Scores

# The matrix product by which vectors become logits of all words.
#
# Shapes: C width of vectors and labels, V vocabulary.


MadeOf = Tuple[int, Optional[int], torch.device, torch.dtype, Optional[torch.dtype]]
"""Storage, version, device, type, and the type under autocast of a parameter."""


MAKE_WIDTHS_EQUAL = (
    "give the last layer the width of the embedding (recurrent models: the last of --hidden-sizes, of a language model "
    "also --output-hidden-size; Transformers: --decoder-output-dim), or take another --output-layer"
)
"""The remedy in errors."""


class WordProjection(nn.Module):
    """Logits of all words: z = L x + b, with a label matrix L made of the label embedding E; b may be left out.

    E is shared with the input embedding or the layer's own, and L is E itself or what a label encoder makes of it. In
    evaluation L is computed once and kept until the weights change.

    An own E starts as U(-0.1, 0.1), like an embedding; b starts at zero.

    Args:
        width: of E.
        vocab_size: V.
        shared_weight: E, (V, width), or None.
        label_encoder: a map from (V, width) to (V, C); by default C = width and L = E.
        bias: "on" or "off".

    Shape:
        x: (*, C); output: (*, V).

    Raises:
        ValueError: if the shared matrix is not as wide.
    """

    def __init__(
        self,
        width: int,
        vocab_size: int,
        *,
        shared_weight: Optional[nn.Parameter],
        label_encoder: Optional[nn.Module] = None,
        bias: str = "on",
    ):
        super().__init__()
        if shared_weight is None:
            shared_weight = nn.Parameter(torch.empty(vocab_size, width).uniform_(-0.1, 0.1))
        elif shared_weight.size(1) != width:
            raise ValueError(
                f"the output layer reads {width} features but the shared embedding is {shared_weight.size(1)} wide: "
                f"{MAKE_WIDTHS_EQUAL}"
            )
        self.weight = shared_weight
        self.bias = nn.Parameter(shared_weight.new_zeros(vocab_size)) if bias == "on" else None
        self.label_encoder = label_encoder
        self._kept: Optional[Tuple[Tuple[List[MadeOf], Optional[torch.dtype]], Tensor]] = None

    def label_matrix(self, dtype: Optional[torch.dtype] = None) -> Tensor:
        """L, (V, C); in evaluation, without gradients or frozen, the one that was computed before, if it still holds.

        ``dtype`` is another type to have it in, without gradients.
        """
        if self.label_encoder is None and dtype is None:
            return self.weight
        if not self.training and self._samples_masks():
            return self._labels_in(dtype)
        learns = is_recorded(self.parameters())
        if self.training or learns:
            self._kept = None  # for optimisers that change weights unseen
            return self._labels_in(dtype)
        parameters = () if self.label_encoder is None else self.label_encoder.parameters()
        made_of = ([self._made_of(x) for x in (self.weight, *parameters)], dtype)
        kept = self._kept  # read once: another thread may keep a matrix of another type meanwhile
        if kept is None or kept[0] != made_of or kept[1].is_inference() and not torch.is_inference_mode_enabled():
            kept = (made_of, self._labels_in(dtype))
            self._kept = kept
        return kept[1]

    def _labels_in(self, dtype: Optional[torch.dtype]) -> Tensor:
        labels = self._labels()
        return labels if dtype is None else labels.to(dtype)

    def _samples_masks(self) -> bool:
        """Whether L differs from call to call."""
        parts = () if self.label_encoder is None else self.label_encoder.modules()
        return any(part.current_rate > 0 for part in parts if isinstance(part, DropsAtRandom))

    def of_words(self, words: Tensor, *, gradients: Gradients) -> Tuple[Tensor, Optional[Tensor]]:
        """Labels (U, C) and biases (U), or None, of the chosen words (U) without repeats, at the price of these.

        ``gradients`` are those of E.
        """
        rows = nn.functional.embedding(words, self.weight, sparse=gradients == "sparse")
        labels = rows if self.label_encoder is None else self.label_encoder(rows)
        return labels, None if self.bias is None else self.bias.index_select(0, words)

    def _labels(self) -> Tensor:
        return self.weight if self.label_encoder is None else self.label_encoder(self.weight)

    @staticmethod
    def _made_of(x: Tensor) -> MadeOf:
        """What differs when a parameter was changed in place, replaced, moved, cast or is read under autocast.

        What is written through ``.data`` is not seen; ``train()`` has the matrix computed anew.
        """
        version = None if x.is_inference() else x._version  # tensors of inference mode have none
        return x.data_ptr(), version, x.device, x.dtype, autocast_dtype(x)

    def train(self, mode: bool = True) -> "WordProjection":
        if mode:
            self._kept = None
        return super().train(mode)

    def _apply(self, *args: Any, **kwargs: Any) -> "WordProjection":
        self._kept = None
        return super()._apply(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._kept = None
        super()._load_from_state_dict(*args, **kwargs)

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_kept": None}

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.label_matrix(), self.bias)


OutputLoss = choices(["fused", "plain"])


@dataclass
class ProjectedOptions(FairseqDataclass):
    """Flags of every projected layer."""

    output_precision: OutputPrecisionName = field(
        default="float32",
        metadata={
            "help": "of the output layer alone, in training and decoding; perplexity is computed in float32 all the "
            "same. bfloat16: logits and probabilities in 16 bits, in half the time where a processor has such "
            "products; auto: bfloat16 if it is faster where training starts, which the checkpoint keeps; float32: as "
            "the rest of the model (default: float32)"
        },
    )
    output_bias: OnOff = field(default="on", metadata={"help": "whether words have biases (default: on)"})
    adversarial_epsilon: float = field(
        default=0.0,
        metadata={
            "help": "in training, the logit of each target is lowered by this share of the product of the lengths of "
            "its label and of the hidden vector, where their inner product is positive; evaluation stays as it is, and "
            "losses of training are those of the lowered logits (default: 0.0)"
        },
    )
    output_loss: OutputLoss = field(
        default="fused",
        metadata={
            "help": "fused: loss and gradients are formed together, a chunk of tokens at a time; "
            "plain: the logits of all tokens are held and differentiated by autograd, slower and for debugging "
            "(default: fused)"
        },
    )
    output_chunk: Optional[int] = field(
        default=None,
        metadata={
            "help": "tokens per chunk of the fused loss; fewer take less memory, and the result differs by rounding "
            "only (default: logits of 32 MiB on a CPU, of 1/128 of a GPU's memory, about 480 rows at least)"
        },
    )


class ProjectedOutput(OutputLayer):
    """P = sum_j pi_j softmax(g (L k_j + b)) with the values g of a gate, or without; one softmax is the case J = 1.

    A subclass sets :attr:`projection`, which holds L and b, and implements :meth:`mixture`.

    Attributes:
        temperature: what an evaluation divides all logits by, g (L k_j + b), before the softmaxes; otherwise 1.
    """

    Options = ProjectedOptions
    sharing = Sharing.POSSIBLE
    takes_gate = True
    temperature: float = 1.0
    projection: WordProjection

    def __init__(self, options: ProjectedOptions):
        super().__init__()
        if options.output_chunk is not None:
            check_positive(options.output_chunk, flag="--output-chunk")
        if options.output_loss == "plain" and options.output_chunk is not None:
            raise ValueError(f"--output-loss plain has no --output-chunk {options.output_chunk}: leave out one of them")
        if options.output_loss == "plain" and options.output_precision != "float32":
            raise ValueError(
                f"--output-loss plain has no --output-precision {options.output_precision}: leave out one of them"
            )
        if options.output_loss == "plain" and options.adversarial_epsilon != 0:
            raise ValueError(
                f"--output-loss plain has no --adversarial-epsilon {options.adversarial_epsilon}: leave out one of them"
            )
        if not 0 <= options.adversarial_epsilon < 1:
            raise ValueError(f"--adversarial-epsilon {options.adversarial_epsilon}: give a share of at least 0 below 1")
        self.adversarial_epsilon = options.adversarial_epsilon
        self.precision = OutputPrecision(options.output_precision)
        self.output_loss = options.output_loss
        self.output_chunk = options.output_chunk

    def mixture(self, states: DecoderStates) -> Tuple[Tensor, Tensor]:
        """k (B, T, J, C), and log pi (B, T, J) in float32 or wider."""
        raise NotImplementedError

    def mixture_weights(self, log_prior: Tensor) -> Optional[Tensor]:
        """pi, (B, T, J), for :class:`Scores`; None for a single softmax."""
        return None

    def log_probs(self, states: DecoderStates, gate: Optional[LogitGate] = None) -> Scores:
        if self.training and self.adversarial_epsilon > 0:
            raise ValueError(
                f"--adversarial-epsilon {self.adversarial_epsilon} needs the targets: train with --criterion "
                "regularized_cross_entropy, or leave it out"
            )
        latents, log_prior = self.mixture(states)
        if torch.is_grad_enabled():
            self._check_trains_in_precision_of_model("a criterion of fairseq")
            log_probs = mixture_log_probs(self._logits(latents, gate), log_prior)
        else:
            latents, bias = self._at_temperature(latents)
            dtype = self.precision.for_search() if states.incremental else self.precision.for_scores()
            log_probs = mixture_log_probs_from_latents(
                latents,
                log_prior,
                self.projection.label_matrix(dtype),
                bias,
                gate=gate,
                chunk_dtype=dtype,
            )
        return Scores(log_probs=log_probs, mixture_weights=self.mixture_weights(log_prior))

    def spread_log_probs(self, states: DecoderStates, gate: Optional[LogitGate] = None) -> Tuple[Scores, Tensor]:
        latents, log_prior = self.mixture(states)
        logits = self._logits(latents, gate)
        of_experts = torch.log_softmax(logits, dim=-1, dtype=log_prior.dtype).mean(dim=-1)
        scores = Scores(log_probs=mixture_log_probs(logits, log_prior), mixture_weights=self.mixture_weights(log_prior))
        return scores, (log_prior.exp() * of_experts).sum(dim=-1)

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
        if self.output_loss == "plain":
            return super().target_loss(
                states,
                target,
                gate,
                token_weights=token_weights,
                label_smoothing=label_smoothing,
                interpolation=interpolation,
            )
        latents, log_prior = self.mixture(states)
        latents, bias = self._at_temperature(latents)
        loss, nll = mixture_nll(
            latents,
            log_prior,
            self.projection.label_matrix(),
            target,
            bias=bias,
            gate=gate,
            interpolation=interpolation,
            token_weights=token_weights,
            label_smoothing=label_smoothing,
            adversarial_epsilon=self.adversarial_epsilon if self.training else 0.0,
            chunk_size=self.output_chunk,
            chunk_dtype=self.precision.for_loss(),
        )
        return Scores(loss=loss, nll=nll, mixture_weights=self.mixture_weights(log_prior))

    def _logits(self, latents: Tensor, gate: Optional[LogitGate]) -> Tensor:
        """g (L k_j + b) of every expert, (B, T, J, V)."""
        logits = self.projection(latents)
        logits = logits if self.temperature == 1 else logits / self.temperature
        return logits if gate is None else apply_gate(logits, gate)

    def _check_trains_in_precision_of_model(self, where: str) -> None:
        if self.training and self.precision.name == "bfloat16":
            raise ValueError(
                f"--output-precision bfloat16 is not for {where}, which computes in the precision of the model: train "
                "with --criterion regularized_cross_entropy, or give float32 or auto"
            )

    def _at_temperature(self, latents: Tensor) -> Tuple[Tensor, Optional[Tensor]]:
        """Latent vectors and bias whose logits are those divided by the temperature."""
        bias = self.projection.bias
        if self.temperature == 1:
            return latents, bias
        return latents / self.temperature, None if bias is None else bias / self.temperature
