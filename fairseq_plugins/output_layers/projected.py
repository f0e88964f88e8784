"""Output layers whose logits are a matrix product; their loss never holds the logits of all tokens.

Shapes: B batch, T time, J experts, d latent width, V vocabulary.
"""

from dataclasses import dataclass, field
from typing import Optional, Tuple

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from torch import Tensor, nn

from fairseq_plugins.ops.mixture_log_probs import mixture_log_probs, mixture_log_probs_from_latents
from fairseq_plugins.ops.mixture_nll import mixture_nll
from fairseq_plugins.options import check_positive
from fairseq_plugins.output_layers.base import DecoderStates, Extra, OutputLayer


class WordProjection(nn.Module):
    """Logits of all words: z = W x + b, with W shared with the input embedding or its own.

    An own W starts as U(-0.1, 0.1), like an embedding; b starts at zero.

    Shape:
        x: (*, C); output: (*, V).

    Raises:
        ValueError: if the shared matrix is not C wide.
    """

    def __init__(self, width: int, vocab_size: int, *, shared_weight: Optional[nn.Parameter]):
        super().__init__()
        if shared_weight is None:
            shared_weight = nn.Parameter(torch.empty(vocab_size, width).uniform_(-0.1, 0.1))
        elif shared_weight.size(1) != width:
            raise ValueError(
                f"the output layer reads {width} features but the shared embedding is {shared_weight.size(1)} wide: "
                "give the last of --hidden-sizes the value of --embed-dim, or take another --output-layer"
            )
        self.weight = shared_weight
        self.bias = nn.Parameter(shared_weight.new_zeros(vocab_size))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight, self.bias)


@dataclass
class ProjectedOptions(FairseqDataclass):
    """Flags of every projected layer."""

    output_loss: ChoiceEnum(["fused", "plain"]) = field(
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
            "only (default: logits of 32 MiB on a CPU, of 1/128 of a GPU's memory, at least 512 rows)"
        },
    )


class ProjectedOutput(OutputLayer):
    """P = sum_j pi_j softmax(W k_j + b); one softmax is the case J = 1.

    A subclass sets :attr:`projection`, which holds W and b, and implements :meth:`mixture`.
    """

    Options = ProjectedOptions
    projection: WordProjection

    def __init__(self, options: ProjectedOptions):
        super().__init__()
        if options.output_chunk is not None:
            check_positive(options.output_chunk, flag="--output-chunk")
        self.output_loss = options.output_loss
        self.output_chunk = options.output_chunk

    def mixture(self, states: DecoderStates) -> Tuple[Tensor, Tensor, Extra]:
        """k (B, T, J, d), log pi (B, T, J) in float32 or wider, and named by-products."""
        raise NotImplementedError

    def log_probs(self, states: DecoderStates) -> Tuple[Tensor, Extra]:
        latents, log_prior, extra = self.mixture(states)
        if torch.is_grad_enabled():
            return mixture_log_probs(self.projection(latents), log_prior), extra
        return mixture_log_probs_from_latents(latents, log_prior, self.projection.weight, self.projection.bias), extra

    def target_loss(
        self,
        states: DecoderStates,
        target: Tensor,
        *,
        token_weights: Optional[Tensor] = None,
        label_smoothing: float = 0.0,
    ) -> Tuple[Tensor, Extra]:
        if self.output_loss == "plain":
            return super().target_loss(states, target, token_weights=token_weights, label_smoothing=label_smoothing)
        latents, log_prior, extra = self.mixture(states)
        loss, nll = mixture_nll(
            latents,
            log_prior,
            self.projection.weight,
            target,
            bias=self.projection.bias,
            token_weights=token_weights,
            label_smoothing=label_smoothing,
            chunk_size=self.output_chunk,
        )
        return loss, {**extra, "nll": nll}
