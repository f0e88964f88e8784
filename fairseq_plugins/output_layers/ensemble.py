"""Output layers of several models under one gate, P = (1/M) sum_m softmax(g * s_m) (Takase et al. 2017).

Shapes: M models, B batch, T time, D_0 and D_N widths of a model's embedding and last layer, V vocabulary, J_m experts.
"""

from dataclasses import replace
from typing import List, Optional, Sequence

import torch
from torch import Tensor

from fairseq_plugins.ops.ensemble import mean_log_probs, responsibilities
from fairseq_plugins.ops.logit_gate import LogitGate
from fairseq_plugins.output_layers.base import OutputLayer
from fairseq_plugins.output_layers.decoder_states import DecoderStates
from fairseq_plugins.output_layers.scores import Scores


def joint_states(states: Sequence[DecoderStates]) -> DecoderStates:
    """What one gate reads of several models: their embeddings side by side, (B, T, sum D_0), and their last layers.

    Those of one model stay as they are, with all layers.
    """
    if len(states) == 1:
        return states[0]
    embedding, last = (torch.cat([one.layers[n] for one in states], dim=-1) for n in (0, -1))
    top = torch.cat([one.top for one in states], dim=-1)
    return replace(states[0], layers=[embedding, last], top=top)


def ensemble_log_probs(
    layers: Sequence[OutputLayer], states: Sequence[DecoderStates], gate: Optional[LogitGate]
) -> Scores:
    """The distribution at every position; see :meth:`OutputLayer.log_probs`."""
    scores = [layer.log_probs(one, gate) for layer, one in zip(layers, states)]
    log_probs = [one.log_probs for one in scores if one.log_probs is not None]
    return Scores(log_probs=mean_log_probs(log_probs), mixture_weights=_joint_weights(scores))


def ensemble_loss(
    layers: Sequence[OutputLayer],
    states: Sequence[DecoderStates],
    target: Tensor,
    gate: Optional[LogitGate],
    *,
    token_weights: Optional[Tensor],
    label_smoothing: float,
) -> Scores:
    """Loss and NLL of given targets, of each layer as in evaluation; see :meth:`OutputLayer.target_loss`.

    Of several models each is scored first. The gradient of -log P is the sum of theirs, each weighted by its share in
    P, so that their fused losses with these weights have it, and no probabilities of all words are held.

    Raises:
        ValueError: if there are several models and ``label_smoothing`` is above zero.
    """
    if len(layers) == 1:
        return layers[0].target_loss(
            states[0], target, gate, token_weights=token_weights, label_smoothing=label_smoothing
        )
    if label_smoothing > 0:
        raise ValueError(
            f"--label-smoothing {label_smoothing}: several base models have none; leave it out, or name one by "
            "--base-model"
        )
    with torch.no_grad():
        scores = [
            layer.target_loss(one, target, gate, token_weights=token_weights) for layer, one in zip(layers, states)
        ]
        log_probs = [-one.nll for one in scores if one.nll is not None]
        nll = -mean_log_probs(log_probs)
        weights = torch.ones_like(nll) if token_weights is None else token_weights.to(nll.dtype)
        nll = nll.masked_fill(weights == 0, 0)
        loss = (weights * nll).sum()
        shares = responsibilities(log_probs)
    if torch.is_grad_enabled():
        weighted: List[Tensor] = [
            layer.target_loss(one, target, gate, token_weights=weights * share).output
            for layer, one, share in zip(layers, states, shares)
        ]
        with_gradient = torch.stack(weighted).sum()
        loss = loss + (with_gradient - with_gradient.detach())
    return Scores(loss=loss, nll=nll, mixture_weights=_joint_weights(scores))


def _joint_weights(scores: Sequence[Scores]) -> Optional[Tensor]:
    """Prior of the softmaxes of all models, (B, T, sum J_m), or None unless all are mixtures."""
    weights = [one.mixture_weights for one in scores if one.mixture_weights is not None]
    if len(weights) < len(scores):
        return None
    return weights[0] if len(weights) == 1 else torch.cat(weights, dim=-1) / len(weights)
