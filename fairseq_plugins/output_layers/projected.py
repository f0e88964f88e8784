"""Output layers whose logits are a matrix product. Their fused loss never holds the logits of all tokens.

Shapes: B batch, T time, J experts, C width of expert hidden states k and of labels, V vocabulary.
"""

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple

import torch
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from fairseq_plugins.modules.layers import DropoutModule
from fairseq_plugins.ops.kernel_choice import KERNEL_NAMES, choose_kernels
from fairseq_plugins.ops.logit_gate import LogitGate, apply_gate
from fairseq_plugins.ops.matmul import autocast_dtype, is_recorded
from fairseq_plugins.ops.mixture_chunk import Interpolation
from fairseq_plugins.ops.mixture_distribution import mixture_log_probs, mixture_log_probs_from_latents
from fairseq_plugins.ops.mixture_loss import mixture_nll
from fairseq_plugins.options import OnOff, UserError, check_at_least_one, choices, flag_of
from fairseq_plugins.output_layers.base import OutputLayer, OutputPrecision, OutputPrecisionName, TieEmbeddings
from fairseq_plugins.output_layers.scores import DecoderStates, Gradients, Scores

ParameterState = Tuple[int, Optional[int], torch.device, torch.dtype, Optional[torch.dtype]]
"""Storage, version, device, dtype and autocast dtype of a parameter."""

MAKE_WIDTHS_EQUAL = (
    "give the last layer the width of the embedding (recurrent models: the last of --hidden-sizes, of a language model "
    "also --output-hidden-size; Transformers: --decoder-output-dim), or take another --output-layer"
)
"""Remedy where the last layer and the embedding differ in width."""


class WordProjection(nn.Module):
    """Logits of all words: z = L x + b, with a label matrix L computed from the label embedding E. b is optional.

    E is the input embedding or the layer's own, and L is the label encoder's output for E, or E itself. In evaluation L
    is computed once and cached until the weights change.

    The layer's own E starts as U(-0.1, 0.1), like an embedding. b starts at zero.

    Args:
        width: of E.
        vocab_size: V.
        shared_weight: E, (V, width), or None for a matrix of the layer's own.
        label_encoder: maps (V, width) to (V, C). Without one C = width and L = E.
        bias: "on" or "off".

    Shape:
        x: (*, C); output: (*, V).

    Raises:
        UserError: if the shared matrix has another width.
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
            raise UserError(
                f"the output layer reads {width} features but the shared embedding is {shared_weight.size(1)} wide: "
                f"{MAKE_WIDTHS_EQUAL}"
            )
        self.weight = shared_weight
        self.bias = nn.Parameter(shared_weight.new_zeros(vocab_size)) if bias == "on" else None
        self.label_encoder = label_encoder
        self._cache: Optional[Tuple[Tuple[List[ParameterState], Optional[torch.dtype]], Tensor]] = None

    def label_matrix(self, dtype: Optional[torch.dtype] = None) -> Tensor:
        """L, (V, C), cast to ``dtype`` if it is given. In evaluation without gradients it comes from the cache."""
        encoder = self.label_encoder
        if encoder is None and dtype is None:
            return self.weight
        if not self.training:
            parts = () if encoder is None else encoder.modules()
            if any(part.current_rate > 0 for part in parts if isinstance(part, DropoutModule)):
                return self._encode(dtype)  # evaluation samples dropout masks: L differs from call to call
        if self.training or is_recorded(self.parameters()):
            self._cache = None  # an optimiser may change weights without changing their version
            return self._encode(dtype)
        parameters = () if encoder is None else encoder.parameters()
        key = ([self._parameter_state(x) for x in (self.weight, *parameters)], dtype)
        cache = self._cache  # read once: another thread may replace it by a matrix of another dtype
        if cache is None or cache[0] != key or cache[1].is_inference() and not torch.is_inference_mode_enabled():
            cache = (key, self._encode(dtype))
            self._cache = cache
        return cache[1]

    def _encode(self, dtype: Optional[torch.dtype]) -> Tensor:
        labels = self.weight if self.label_encoder is None else self.label_encoder(self.weight)
        return labels if dtype is None else labels.to(dtype)

    def select(self, words: Tensor, *, gradients: Gradients) -> Tuple[Tensor, Optional[Tensor]]:
        """Labels (U, C) and biases (U), or None, of the words (U), which must not repeat. Other words cost nothing.

        ``gradients`` is the form of the gradient of E.
        """
        rows = nn.functional.embedding(words, self.weight, sparse=gradients == "sparse")
        labels = rows if self.label_encoder is None else self.label_encoder(rows)
        return labels, None if self.bias is None else self.bias.index_select(0, words)

    @staticmethod
    def _parameter_state(x: Tensor) -> ParameterState:
        """A key that differs after a parameter was changed in place, replaced, moved or cast, and under autocast.

        Changes through ``.data`` go unnoticed; ``train()`` clears the cache after them.
        """
        version = None if x.is_inference() else x._version  # tensors of inference mode have none
        return x.data_ptr(), version, x.device, x.dtype, autocast_dtype(x)

    def train(self, mode: bool = True) -> "WordProjection":
        if mode:
            self._cache = None
        return super().train(mode)

    def _apply(self, *args: Any, **kwargs: Any) -> "WordProjection":
        self._cache = None
        return super()._apply(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._cache = None
        super()._load_from_state_dict(*args, **kwargs)

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_cache": None}

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.label_matrix(), self.bias)


OutputLoss = choices(["fused", "plain"])
OutputKernels = choices(KERNEL_NAMES)


@dataclass
class ProjectedOptions(FairseqDataclass):
    """Flags of every projected layer."""

    output_precision: OutputPrecisionName = field(
        default="float32",
        metadata={
            "help": "precision of the output layer alone in training; perplexities and translations are always "
            "computed in float32. bfloat16: logits and probabilities in 16 bits, in half the time on processors with "
            "bfloat16 matrix products; auto: bfloat16 on such processors, else float32; float32: the precision of "
            "the rest of the model (default: float32)"
        },
    )
    output_bias: OnOff = field(default="on", metadata={"help": "whether words have biases (default: on)"})
    adversarial_epsilon: float = field(
        default=0.0,
        metadata={
            "help": "in training, the logit of each target is lowered by this share of the product of the norms of "
            "its label and of the hidden vector, if their inner product is positive. The training loss "
            "includes this, evaluation does not (default: 0.0)"
        },
    )
    output_loss: OutputLoss = field(
        default="fused",
        metadata={
            "help": "fused: loss and gradients are formed together, a chunk of tokens at a time; plain: autograd "
            "differentiates the logits of all tokens; slower, for debugging (default: fused)"
        },
    )
    output_chunk: Optional[int] = field(
        default=None,
        metadata={
            "help": "tokens per chunk of the fused loss; fewer need less memory (default: as many as have "
            "32 MiB of logits on a CPU, or 1/128 of a GPU's memory, but at least about 480 tokens times experts)"
        },
    )
    output_kernels: OutputKernels = field(
        default="auto",
        metadata={
            "help": "kernels of the fused loss and of search on a GPU. auto: Triton's if it is installed, the GPU "
            "has compute capability 8.0 or more, and a small trial agrees with torch up to rounding; else "
            "plain torch (default: auto)"
        },
    )


class ProjectedOutput(OutputLayer):
    """P = sum_j pi_j softmax(g (L k_j + b)), with the values g of a gate or without. One softmax is the case J = 1.

    A subclass sets :attr:`projection`, which holds L and b, and implements :meth:`mixture`.

    Attributes:
        temperature: divisor of all logits g (L k_j + b) before the softmaxes. Only an evaluation sets it.
    """

    Options = ProjectedOptions
    tie_embeddings = TieEmbeddings.AUTO
    takes_gate = True
    temperature: float = 1.0
    projection: WordProjection

    def __init__(self, options: ProjectedOptions):
        super().__init__()
        if options.output_chunk is not None:
            check_at_least_one(options.output_chunk, flag="--output-chunk")
        if options.output_loss == "plain":
            for name, unset in (("output_chunk", None), ("output_precision", "float32"), ("adversarial_epsilon", 0)):
                if (value := getattr(options, name)) != unset:
                    raise UserError(f"--output-loss plain has no {flag_of(name)} {value}: leave out one of them")
        if not 0 <= options.adversarial_epsilon < 1:
            raise UserError(f"--adversarial-epsilon {options.adversarial_epsilon}: give a share of at least 0 below 1")
        self.adversarial_epsilon = options.adversarial_epsilon
        self.precision = OutputPrecision(options.output_precision)
        self.output_loss = options.output_loss
        self.output_chunk = options.output_chunk
        self.output_kernels: str = options.output_kernels

    def mixture(self, states: DecoderStates) -> Tuple[Tensor, Tensor]:
        """Expert hidden states k (B, T, J, C), and log pi (B, T, J) in float32 or wider."""
        raise NotImplementedError

    def mixture_weights(self, log_prior: Tensor) -> Optional[Tensor]:
        """pi, (B, T, J), for :class:`Scores`, or None for a single softmax."""
        return None

    def log_probs(self, states: DecoderStates, gate: Optional[LogitGate] = None) -> Scores:
        if self.training and self.adversarial_epsilon > 0:
            raise UserError(
                f"--adversarial-epsilon {self.adversarial_epsilon} needs the targets: train with --criterion "
                "regularized_cross_entropy, or leave it out"
            )
        hidden, log_prior = self.mixture(states)
        if torch.is_grad_enabled():
            self._check_trains_in_precision_of_model("a criterion of fairseq")
            log_probs = mixture_log_probs(self._logits(hidden, gate), log_prior)
        else:
            hidden, bias = self._at_temperature(hidden)
            dtype = self.precision.for_scores()
            log_probs = mixture_log_probs_from_latents(
                hidden,
                log_prior,
                self.projection.label_matrix(dtype),
                bias,
                gate=gate,
                chunk_dtype=dtype,
                kernels=choose_kernels(hidden.device, self.output_kernels),
            )
        return Scores(log_probs=log_probs, mixture_weights=self.mixture_weights(log_prior))

    def log_probs_for_smoothing(self, states: DecoderStates, gate: Optional[LogitGate] = None) -> Tuple[Scores, Tensor]:
        hidden, log_prior = self.mixture(states)
        logits = self._logits(hidden, gate)
        # Each expert is smoothed separately. Smoothing only the mixture lets the model satisfy the penalty with one
        # uniform expert while the others stay overconfident.
        uniform_log_probs = torch.log_softmax(logits, dim=-1, dtype=log_prior.dtype).mean(dim=-1)
        scores = Scores(log_probs=mixture_log_probs(logits, log_prior), mixture_weights=self.mixture_weights(log_prior))
        return scores, (log_prior.exp() * uniform_log_probs).sum(dim=-1)

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
        hidden, log_prior = self.mixture(states)
        hidden, bias = self._at_temperature(hidden)
        loss, nll = mixture_nll(
            hidden,
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
            kernels=choose_kernels(hidden.device, self.output_kernels),
        )
        return Scores(loss=loss, nll=nll, mixture_weights=self.mixture_weights(log_prior))

    def _logits(self, hidden: Tensor, gate: Optional[LogitGate]) -> Tensor:
        """g (L k_j + b) of every expert, (B, T, J, V)."""
        logits = self.projection(hidden)
        logits = logits if self.temperature == 1 else logits / self.temperature
        return logits if gate is None else apply_gate(logits, gate)

    def _check_trains_in_precision_of_model(self, where: str) -> None:
        if self.precision.training and self.precision.name == "bfloat16":  # all that trains in a gated model
            raise UserError(
                f"--output-precision bfloat16 is not for {where}, which computes in the precision of the model: train "
                "with --criterion regularized_cross_entropy, or give float32 or auto"
            )

    def _at_temperature(self, hidden: Tensor) -> Tuple[Tensor, Optional[Tensor]]:
        """k and b divided by the temperature, so that the logits are divided by it."""
        bias = self.projection.bias
        if self.temperature == 1:
            return hidden, bias
        return hidden / self.temperature, None if bias is None else bias / self.temperature
