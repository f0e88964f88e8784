"""Copying source words: what attention looks at may be the next word, beside what the output layer says.

Shapes: B sentences, T target steps, S source positions, D_N width of the last layer, V target words.
"""

from argparse import Namespace
from dataclasses import replace
from typing import Any, Callable, List, Optional, Tuple

import torch
from fairseq.data import Dictionary
from torch import Tensor, nn

from fairseq_plugins.flags.registry import Component, Registry
from fairseq_plugins.modules.saved_setting import SavesSettings
from fairseq_plugins.ops.interpolation import Interpolation
from fairseq_plugins.ops.precision import accumulation_dtype
from fairseq_plugins.output_layers.decoder_states import DecoderStates
from fairseq_plugins.output_layers.scores import Scores


class Copying(Component, SavesSettings):
    """Gives source words a probability of their own, whatever the output layer.

    A subclass registers itself with ``COPYING.register`` and implements :meth:`interpolation` and :meth:`blended`; it
    then is a value of ``--copying``. :func:`build_copying` calls the constructor with keywords: ``source`` and
    ``target``, the dictionaries, and ``width``, D_N.
    """

    def __init__(self):
        super().__init__()
        self.save_setting("copying_name", flag=COPYING.flag, value=self.name)

    def interpolation(self, states: DecoderStates, target: Tensor) -> Optional[Interpolation]:
        """What the loss of targets (B, T) makes of the output layer's probabilities; None leaves them."""
        raise NotImplementedError

    def blended(self, scores: Scores, states: DecoderStates) -> Scores:
        """The distribution with the copied words."""
        raise NotImplementedError


COPYING: Registry[Copying] = Registry("--copying", help="whether source words are copied to the target")
"""Values of ``--copying``."""


@COPYING.register("none")
class NoCopying(Copying):
    """Leaves the output layer's probabilities as they are."""

    def __init__(self, **unused: Any):
        super().__init__()

    def interpolation(self, states: DecoderStates, target: Tensor) -> None:
        return None

    def blended(self, scores: Scores, states: DecoderStates) -> Scores:
        return scores


@COPYING.register("attention")
class AttentionCopying(Copying):
    """P(v) = (1 - g) P_output(v) + g sum_{i: x_i = v} a_i, g = sigmoid(w . h^N + b)  (See et al. 2017, eq. 9).

    a is the attention over the source x_1 .. x_S. A source word that the target's dictionary has not counts as its
    unknown word, for which ``--replace-unk`` writes the source word. g reads the last layer alone, which is made of the
    state and of what attention found.
    """

    def __init__(self, *, source: Dictionary, target: Dictionary, width: int):
        super().__init__()
        self.share = nn.Linear(width, 1)
        self.register_buffer("target_words", torch.tensor(_words_in(source, target)), persistent=False)

    def interpolation(self, states: DecoderStates, target: Tensor) -> Interpolation:
        log_keep, log_share = self._log_shares(states)
        words, weights = self._pointed_at(states)
        copied = (weights * (words.unsqueeze(1) == target.unsqueeze(-1))).sum(dim=-1)
        return Interpolation(log_weight=log_keep, log_other=log_share + _log(copied))

    def blended(self, scores: Scores, states: DecoderStates) -> Scores:
        assert scores.log_probs is not None
        log_keep, log_share = self._log_shares(states)
        words, weights = self._pointed_at(states)
        first_places = (words.unsqueeze(1) == words.unsqueeze(2)).byte().argmax(dim=-1)
        words, first_places = (x.unsqueeze(1).expand_as(weights) for x in (words, first_places))
        copied = torch.zeros_like(weights).scatter_add(-1, first_places, weights)
        own = scores.log_probs + log_keep.unsqueeze(-1)
        of_words = own.gather(-1, words)
        raised = torch.logaddexp(of_words, log_share.unsqueeze(-1) + _log(copied)) - of_words
        return replace(scores, log_probs=own.scatter_add(-1, words, raised))

    def _log_shares(self, states: DecoderStates) -> Tuple[Tensor, Tensor]:
        """log (1 - g) and log g, (B, T)."""
        score = self.share(states.layers[-1]).squeeze(-1)
        score = score.to(accumulation_dtype(score))
        return nn.functional.logsigmoid(-score), nn.functional.logsigmoid(score)

    def _pointed_at(self, states: DecoderStates) -> Tuple[Tensor, Tensor]:
        """The target word of every source position, (B, S), and the attention, (B, T, S), which sums to one."""
        assert states.source is not None and states.attention is not None
        weights = states.attention.to(accumulation_dtype(states.attention))
        # the host's Transformers drop some of the weights that they return
        total = weights.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
        return self.target_words[states.source], weights / total


def _words_in(source: Dictionary, target: Dictionary) -> List[int]:
    """The target's index of every word of the source's dictionary."""
    return [target.index(word) for word in source.symbols]


def _log(probabilities: Tensor) -> Tensor:
    """Logarithms with gradients of zero, not infinity, where a probability is zero."""
    is_zero = probabilities == 0
    return probabilities.masked_fill(is_zero, 1).log().masked_fill(is_zero, float("-inf"))


def build_copying(args: Namespace, *, source: Dictionary, target: Dictionary, width: int) -> Copying:
    """Build what ``args.copying`` names, by default nothing.

    Raises:
        ValueError: if it does not exist.
    """
    vars(args).setdefault(COPYING.destination, NoCopying.name)  # what older checkpoints hold names none
    COPYING.read_options(args)
    copying_class: Callable[..., Copying] = COPYING[args.copying]
    return copying_class(source=source, target=target, width=width)
