"""What every kind of copying of source words has in common, and how a model is built with one.

Shapes: B sentences, T target steps, D_N width of the last layer.
"""

from argparse import Namespace
from dataclasses import replace
from typing import Any, Callable, List, Optional, Tuple

import torch
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from fairseq_plugins.components import Component, Registry
from fairseq_plugins.ops.logit_gate import Interpolation
from fairseq_plugins.ops.matmul import accumulation_dtype
from fairseq_plugins.output_layers.scores import DecoderStates, Scores


class Copying(Component, nn.Module):
    """Gives source words a probability of their own, whatever the output layer.

    A subclass registers itself with ``COPYING.register``, names its flags in the dataclass ``Options`` and implements
    :meth:`interpolation` and :meth:`blended`; it then is a value of ``--copying``. :func:`build_copying` calls the
    constructor with keywords: ``source`` and ``target``, the dictionaries, ``width``, D_N, and ``options``, an instance
    of ``Options``.

    Attributes:
        needs_attention: whether the states must have an attention to the source.
    """

    needs_attention = True

    def interpolation(self, states: DecoderStates, target: Tensor) -> Optional[Interpolation]:
        """What the loss of targets (B, T) makes of the output layer's probabilities; None leaves them."""
        raise NotImplementedError

    def blended(self, scores: Scores, states: DecoderStates) -> Scores:
        """The distribution with the copied words."""
        raise NotImplementedError


COPYING: Registry[Copying] = Registry("--copying", help="whether source words are copied to the target (default: none)")
"""Values of ``--copying``."""


@COPYING.register("none")
class NoCopying(Copying):
    """Leaves the output layer's probabilities as they are."""

    needs_attention = False

    def __init__(self, **unused: Any):
        super().__init__()

    def interpolation(self, states: DecoderStates, target: Tensor) -> None:
        return None

    def blended(self, scores: Scores, states: DecoderStates) -> Scores:
        return scores


def build_copying(
    args: Namespace, *, source: Dictionary, target: Dictionary, width: int, attention_removed_by: Optional[str]
) -> Copying:
    """Build what ``args.copying`` names, by default nothing.

    Args:
        args: parsed flags.
        source, target: the dictionaries.
        width: of the last layer.
        attention_removed_by: the flag that leaves targets without attention, or None where all have it.

    Raises:
        ValueError: if it does not exist, or needs an attention that is not there.
    """
    vars(args).setdefault(COPYING.destination, NoCopying.name)  # presets name none
    options = COPYING.read_options(args)
    copying_class: Callable[..., Copying] = COPYING[args.copying]
    copying = copying_class(source=source, target=target, width=width, options=options)
    if attention_removed_by is not None and copying.needs_attention:
        raise ValueError(f"--copying {copying.name} needs attention to the source: leave out {attention_removed_by}")
    return copying


# Copying source words: what attention looks at may be the next word, beside what the output layer says.
#
# Shapes: B sentences, T target steps, S source positions, D_N width of the last layer, V target words.


@COPYING.register("attention")
class AttentionCopying(Copying):
    """P(v) = (1 - g) P_output(v) + g sum_{i: x_i = v} a_i, g = sigmoid(w . h^N + b)  (See et al. 2017, eq. 9).

    a is the attention over the source x_1 .. x_S. A source word that the target's dictionary has not counts as its
    unknown word, for which ``--replace-unk`` writes the source word. The end mark is a source word like the others, so
    that attention to it may end the target. g reads the last layer alone, which is made of the state and of what
    attention found.
    """

    target_words: Tensor

    def __init__(self, *, source: Dictionary, target: Dictionary, width: int, options: FairseqDataclass):
        super().__init__()
        self.share = nn.Linear(width, 1)
        self.register_buffer("target_words", torch.tensor(_target_words(source, target)), persistent=False)

    def interpolation(self, states: DecoderStates, target: Tensor) -> Interpolation:
        log_keep, log_share = self._log_shares(states)
        words, weights = self._pointed_at(states)
        copied = (weights * (words.unsqueeze(1) == target.unsqueeze(-1))).sum(dim=-1)
        return Interpolation(log_weight=log_keep, log_other=log_share + _log(copied))

    def blended(self, scores: Scores, states: DecoderStates) -> Scores:
        assert scores.log_probs is not None
        log_keep, log_share = (x.unsqueeze(-1) for x in self._log_shares(states))
        words, weights = self._pointed_at(states)
        places = words.unsqueeze(1).expand_as(weights)
        if not torch.is_grad_enabled():
            log_probs = scores.log_probs + log_keep
            # the sum over equal words, at each of their positions: the few words of a source are all that changes
            with torch.autocast(weights.device.type, enabled=False):
                copied = weights @ (words.unsqueeze(2) == words.unsqueeze(1)).to(weights.dtype)
            there = torch.logaddexp(log_probs.gather(-1, places), log_share + _log(copied.to(log_probs.dtype)))
            return replace(scores, log_probs=log_probs.scatter_(-1, places, there))
        copied = torch.zeros_like(scores.log_probs).scatter_add(-1, places, weights.to(scores.log_probs.dtype))
        return replace(scores, log_probs=torch.logaddexp(scores.log_probs + log_keep, log_share + _log(copied)))

    def _log_shares(self, states: DecoderStates) -> Tuple[Tensor, Tensor]:
        """log (1 - g) and log g, (B, T)."""
        score = self.share(states.layers[-1]).squeeze(-1)
        score = score.to(accumulation_dtype(score))
        return nn.functional.logsigmoid(-score), nn.functional.logsigmoid(score)

    def _pointed_at(self, states: DecoderStates) -> Tuple[Tensor, Tensor]:
        """The target word of every source position, (B, S), and the attention, (B, T, S), which sums to one.

        Raises:
            ValueError: if gradients by attention weights a, some of which are as large as 1 / a, are in float16.
        """
        weights = states.attention
        assert states.source is not None and weights is not None
        if weights.dtype == torch.float16 and weights.requires_grad:
            raise ValueError(
                "--copying attention: gradients by a Transformer's attention overflow in --fp16; train with --amp, "
                "--bf16 or in 32 bits"
            )
        weights = weights.to(accumulation_dtype(weights))
        # rounded to 16 bits, they need not
        total = weights.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
        return self.target_words[states.source], weights / total


def _target_words(source: Dictionary, target: Dictionary) -> List[int]:
    """The target's index of every word of the source's dictionary."""
    return [target.index(word) for word in source.symbols]


def _log(probabilities: Tensor) -> Tensor:
    """Logarithms with gradients of zero, not infinity, where a probability is zero."""
    is_zero = probabilities == 0
    return probabilities.masked_fill(is_zero, 1).log().masked_fill(is_zero, float("-inf"))
