"""Ways to copy source words: attention to the source becomes a part of the next word's distribution.

Shapes: B sentences, T target steps, S source positions, D_N width of the last layer, V target words.
"""

from argparse import Namespace
from dataclasses import replace
from typing import Any, Optional, Tuple

import torch
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from fairseq_plugins.ops.matmul import accumulation_dtype
from fairseq_plugins.ops.mixture_chunk import Interpolation
from fairseq_plugins.options import UserError
from fairseq_plugins.output_layers.scores import DecoderStates, Scores
from fairseq_plugins.parts import NONE, Part, Registry


class Copying(Part, nn.Module):
    """Interpolates the distribution of any output layer with one over the source words.

    To add a value of ``--copying``, a subclass registers itself with ``COPYING.register``, declares its flags in the
    dataclass ``Options`` and implements :meth:`interpolation` and :meth:`blended`. :func:`build_copying` calls the
    constructor with keywords: ``source`` and ``target`` (the dictionaries), ``width`` (D_N) and ``options`` (an
    instance of ``Options``). The states that it reads have an attention to the source.
    """

    def interpolation(self, states: DecoderStates, target: Tensor) -> Optional[Interpolation]:
        """How the loss changes the probabilities of the targets (B, T); None leaves them as they are."""
        raise NotImplementedError

    def blended(self, scores: Scores, states: DecoderStates) -> Scores:
        """The distribution (B, T, V) with the copied words."""
        raise NotImplementedError


COPYING: Registry[Copying] = Registry("--copying", help="whether source words are copied to the target (default: none)")
"""Values of ``--copying``."""


@COPYING.register(NONE)
class NoCopying(Copying):
    """Leaves the output layer's probabilities as they are."""

    def __init__(self, **unused: Any):
        super().__init__()

    def interpolation(self, states: DecoderStates, target: Tensor) -> None:
        return None

    def blended(self, scores: Scores, states: DecoderStates) -> Scores:
        return scores


def build_copying(
    args: Namespace, *, source: Dictionary, target: Dictionary, width: int, attention_removed_by: Optional[str]
) -> Copying:
    """Build the copying that ``args.copying`` names, by default none.

    Args:
        args: parsed flags.
        source, target: the dictionaries.
        width: D_N.
        attention_removed_by: the flag because of which the states have no attention, or None if they have it.

    Raises:
        UserError: if the copying does not exist, or the attention is missing.
    """
    copying = COPYING.build(args, source=source, target=target, width=width)
    if attention_removed_by is not None and copying.name != NoCopying.name:
        raise UserError(f"--copying {copying.name} needs attention to the source: leave out {attention_removed_by}")
    return copying


@COPYING.register("attention")
class AttentionCopying(Copying):
    """P(v) = (1 - g) P_output(v) + g sum_{i: x_i = v} a_i, g = sigmoid(w . h^N + b)  (See et al. 2017, eq. 9).

    a is the attention over the source x_1 .. x_S. A source word that is not in the target dictionary counts as the
    unknown word, which ``--replace-unk`` replaces by the source word. The end of sentence is copied like any word, so
    attention to it can end the target. g reads only the last layer, which already combines the decoder's state and the
    attention's context.
    """

    target_words: Tensor

    def __init__(self, *, source: Dictionary, target: Dictionary, width: int, options: FairseqDataclass):
        super().__init__()
        self.copy_gate = nn.Linear(width, 1)
        self.register_buffer(
            "target_words", torch.tensor([target.index(word) for word in source.symbols]), persistent=False
        )

    def interpolation(self, states: DecoderStates, target: Tensor) -> Interpolation:
        log_keep, log_copy = self._log_gate(states)
        words, weights = self._source_attention(states)
        copied = (weights * (words.unsqueeze(1) == target.unsqueeze(-1))).sum(dim=-1)
        return Interpolation(log_weight=log_keep, log_other=log_copy + _log(copied))

    def blended(self, scores: Scores, states: DecoderStates) -> Scores:
        assert scores.log_probs is not None
        log_keep, log_copy = (x.unsqueeze(-1) for x in self._log_gate(states))
        words, weights = self._source_attention(states)
        places = words.unsqueeze(1).expand_as(weights)
        copied = torch.zeros_like(scores.log_probs).scatter_add_(-1, places, weights.to(scores.log_probs.dtype))
        log_probs = scores.log_probs + log_keep
        if torch.is_grad_enabled():
            return replace(scores, log_probs=torch.logaddexp(log_probs, log_copy + _log(copied)))
        # Only the few source words are updated, in place. All positions of a word write the same value.
        updated = torch.logaddexp(log_probs.gather(-1, places), log_copy + _log(copied.gather(-1, places)))
        return replace(scores, log_probs=log_probs.scatter_(-1, places, updated))

    def _log_gate(self, states: DecoderStates) -> Tuple[Tensor, Tensor]:
        """log (1 - g) and log g, (B, T)."""
        score = self.copy_gate(states.layers[-1]).squeeze(-1)
        score = score.to(accumulation_dtype(score))
        return nn.functional.logsigmoid(-score), nn.functional.logsigmoid(score)

    def _source_attention(self, states: DecoderStates) -> Tuple[Tensor, Tensor]:
        """The target word at every source position, (B, S), and the attention, (B, T, S), normalised to sum to one.

        Raises:
            UserError: if attention in float16 needs gradients: a weight's gradient may be the weight's inverse and
            overflow.
        """
        weights = states.attention
        assert states.source is not None and weights is not None
        if weights.dtype == torch.float16 and weights.requires_grad:
            raise UserError(
                "--copying attention: gradients of a Transformer's attention overflow in --fp16; train with --amp, "
                "--bf16 or in 32 bits"
            )
        weights = weights.to(accumulation_dtype(weights))
        # weights that were rounded to 16 bits do not sum to one
        total = weights.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
        return self.target_words[states.source], weights / total


def _log(probabilities: Tensor) -> Tensor:
    """Logarithms whose gradient at a probability of zero is 0 instead of inf."""
    is_zero = probabilities == 0
    return probabilities.masked_fill(is_zero, 1).log().masked_fill(is_zero, float("-inf"))
