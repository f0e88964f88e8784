"""References for the tests, one line of code per line of the papers' formulas."""

from typing import Tuple

import torch
from torch import Tensor


def lstm(x: Tensor, h: Tensor, c: Tensor, w_x: Tensor, w_h: Tensor, b_x: Tensor, b_h: Tensor = 0.0, *, mask=1.0):
    """An LSTM step by step: x (B, T, C), h, c and the mask of h (B, D); returns the outputs (B, T, D), h and c."""
    outputs = []
    for x_t in x.unbind(1):
        i, f, g, o = (x_t @ w_x.T + b_x + (mask * h) @ w_h.T + b_h).chunk(4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs, dim=1), h, c


def recurrent_highway(x: Tensor, s: Tensor, w_x: Tensor, micro_layers, *, mask=1.0, transform_input="state"):
    """Zilly et al. 2017: x (B, T, C), s and the mask of s (B, D), R (2 D, D) and b (2 D) of each micro-layer."""
    w_h, w_t = w_x.chunk(2)
    outputs = []
    for x_t in x.unbind(1):
        for n, (r, b) in enumerate(micro_layers):
            (r_h, r_t), (b_h, b_t), is_first = r.chunk(2), b.chunk(2), float(n == 0)
            h = torch.tanh(is_first * (x_t @ w_h.T) + (s * mask) @ r_h.T + b_h)
            read = {"state": s * mask, "candidate": h}[transform_input]
            t = torch.sigmoid(is_first * (x_t @ w_t.T) + read @ r_t.T + b_t)
            s = (h - s) * t + s
        outputs.append(s)
    return torch.stack(outputs, dim=1), s


def mogrifier(x: Tensor, h: Tensor, c: Tensor, rounds, w_x: Tensor, w_h: Tensor, b: Tensor, *, mask=1.0):
    """Melis et al. 2020: x (B, T, C), h, c and the mask of h (B, D), matrix and bias of each round."""
    outputs = []
    for x_t in x.unbind(1):
        h = h * mask
        for i, (q, b_q) in enumerate(rounds, start=1):
            if i % 2 == 1:
                x_t = 2 * torch.sigmoid(h @ q.T + b_q) * x_t
            else:
                h = 2 * torch.sigmoid(x_t @ q.T + b_q) * h
        i, f, g, o = (x_t @ w_x.T + h @ w_h.T + b).chunk(4, dim=1)
        f = torch.sigmoid(f)
        i = torch.where(torch.sigmoid(i) <= 1 - f, torch.sigmoid(i), 1 - f)
        c = f * c + i * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs, dim=1), h, c


def simple_recurrent(x: Tensor, h: Tensor, w_x: Tensor, w_h: Tensor, f, *, skip=None, boundaries=None):
    """x_t = f(W y_t + R x_{t-1}) of Pachitariu & Sahani 2013: y (B, T, C), R (D, D); returns x (B, T, D).

    With R' = ``skip`` and boundaries (B, T), R' x_{t'} is added where a word begins; the text begins with a word.
    """
    rows = []
    for n, row in enumerate(x):
        state, letter, inside, outputs = h[n], torch.zeros_like(h[n]), False, []
        for t, y in enumerate(row):
            boundary = skip is not None and bool(boundaries[n, t])
            starts = skip is not None and not boundary and not inside
            state = f(w_x @ y + w_h @ state + (skip @ letter if starts else 0))
            letter, inside = (state if starts else letter), not boundary
            outputs.append(state)
        rows.append(torch.stack(outputs))
    return torch.stack(rows)


def rectified(z: Tensor, a: float = 0.0) -> Tensor:
    """max(0, z - a tanh(z / a)), and max(0, z) for a = 0."""
    z = z - a * torch.tanh(z / a) if a else z
    return z * (z > 0)


def _lstm_layer(layer, x, state, e, mask=1.0):
    """The mask is that of h, or with weight drop that of the recurrent matrix."""
    w_x, w_h, *biases = layer.parameters()
    if layer.name == "lstm":
        w_h, mask = mask * w_h, 1.0
    outputs, h, c = lstm(x, state["h"], state["c"], w_x, w_h, *biases, mask=mask)
    return outputs, {"h": h, "c": c}


def _major_minor_layer(layer, x, state, e):
    """The state holds the major's [h; c] before the minor's."""
    sizes = layer.major.hidden_size, layer.minor.hidden_size
    (h_ma, h_mi), (c_ma, c_mi) = state["h"].split(sizes, dim=1), state["c"].split(sizes, dim=1)
    minor_input = e if layer.minor_reads_stack_input else x
    major = lstm(x, h_ma, c_ma, *layer.major.parameters())
    minor = lstm(minor_input, h_mi, c_mi, *layer.minor.parameters())
    outputs, h, c = (torch.cat(parts, dim=-1) for parts in zip(major, minor))
    return outputs, {"h": h, "c": c}


def _recurrent_highway_layer(layer, x, state, e, mask=1.0, *, transform_bias=-2.0, transform_input="state"):
    b_h = torch.zeros(layer.hidden_size, dtype=x.dtype)
    start = torch.cat([b_h, b_h + transform_bias])
    micro_layers = [(micro_layer.weight, micro_layer.bias + start) for micro_layer in layer.micro_layers]
    options = dict(mask=mask, transform_input=transform_input)
    outputs, s = recurrent_highway(x, state["s"], layer.input.weight, micro_layers, **options)
    return outputs, {"s": s}


def _mogrifier_layer(layer, x, state, e, mask=1.0):
    """The matrix of a round is a product of two where it has a rank."""
    rounds = []
    for part in layer.rounds:
        *first, last = part.factors
        rounds.append((last.weight @ first[0].weight if first else last.weight, last.bias))
    weights = layer.input.weight, layer.recurrent.weight, layer.input.bias
    outputs, h, c = mogrifier(x, state["h"], state["c"], rounds, *weights, mask=mask)
    return outputs, {"h": h, "c": c}


def _simple_recurrent_layer(layer, x, state, e, *, recurrent_scale=1.0, rectifier_smoothing=1.0, boundaries=None):
    f = {
        "diagonal": lambda z: z,
        "rectifier": rectified,
        "smooth-rectifier": lambda z: rectified(z, rectifier_smoothing),
    }[layer.name]
    w_x = torch.eye(x.size(-1), dtype=x.dtype) if layer.input is None else layer.input.weight
    if layer.recurrent is None:
        w_h = torch.diag(torch.tanh(layer.connection_offset + layer.connection_bias))
    else:
        w_h = recurrent_scale * layer.recurrent.weight
    skip = None if boundaries is None else recurrent_scale * layer.skip.weight
    outputs = simple_recurrent(x, state["x"], w_x, w_h, f, skip=skip, boundaries=boundaries)
    return outputs, {"x": outputs[:, -1]}


CELLS = {
    "lstm": _lstm_layer,
    "variational": _lstm_layer,
    "mmlstm": _major_minor_layer,
    "rhn": _recurrent_highway_layer,
    "mogrifier": _mogrifier_layer,
    "diagonal": _simple_recurrent_layer,
    "rectifier": _simple_recurrent_layer,
    "smooth-rectifier": _simple_recurrent_layer,
}
"""Outputs (B, T, D) and state of every cell over x (B, T, C) in a stack that reads e, by default without a mask.

Flags that are not the default's and that the weights do not show are given by name.
"""


def recurrent(layer, x: Tensor, state, e: Tensor, *mask, **flags):
    """The entry of :data:`CELLS` for a layer."""
    return CELLS[layer.name](layer, x, state, e, *mask, **flags)


def encoder(stack, x: Tensor, merge="top"):
    """Annotations and final state of one sentence x (1, S, C), which layers of two directions read."""

    def read(layer, x, e):
        return recurrent(layer, x, layer.initial_state(x), e)

    e, ahead, back, state = x, x, x.flip(1), []
    for layer, other in zip(*(direction.layers for direction in stack.stacks)):
        (ahead, ahead_state), (back, back_state) = read(layer, ahead, e), read(other, back, e.flip(1))
        state.append({name: part + back_state[name] for name, part in ahead_state.items()})
        if merge == "layer":
            x = ahead + back.flip(1)
            ahead, back = x, x.flip(1)
    return (x if merge == "layer" else ahead + back.flip(1)), state


def attended(attention, h: Tensor, annotations: Tensor, padding=None):
    """h~ (B, H) and the weights (B, S) for h (B, H)."""
    weights, e = attention.state_dict(keep_vars=True), annotations
    if "score.weight" in weights:
        hidden = torch.tanh((h @ weights["query.weight"].T)[:, None] + e @ weights["key.weight"].T)
        scores = hidden @ weights["score.weight"][0]
    else:
        query = h @ weights["query.weight"].T if "query.weight" in weights else h
        scores = torch.einsum("bm,bsm->bs", query, e)
    a = softmax(scores if padding is None else scores - 1e9 * padding)
    context = torch.einsum("bs,bsm->bm", a, e)
    return torch.tanh(torch.cat([h, context], dim=1) @ weights["combine.weight"].T), a


def attentional_stack(stack, x: Tensor, memory, states, *, feeds, masks=None):
    """All layers' outputs, h~ before dropout, weights and final states of an attention over recurrent layers.

    ``memory`` holds the annotations and where they are padding, or is None without attention; ``masks`` multiply the
    layers' outputs.
    """
    states, fed = list(states), x.new_zeros(len(x), stack.stack.layers[-1].hidden_size)
    outputs, tops, weights = [[] for _ in range(len(states) + 1)], [], []
    for t, x_t in enumerate(x.unbind(1)):
        below = first = torch.cat([x_t, fed], dim=1) if feeds else x_t
        for n, layer in enumerate(stack.stack.layers):
            output, states[n] = recurrent(layer, below.unsqueeze(1), states[n], first.unsqueeze(1))
            top = output.squeeze(1)
            below = top if masks is None else top * masks[n][:, t]
            outputs[n].append(below)
        if memory is not None:
            top, a = attended(stack.attention, top, memory.annotations, memory.padding)
            outputs[-1].append(top if masks is None else top * masks[-1][:, t])
            weights.append(a)
        tops.append(top)
        fed = top
    layers = [torch.stack(steps, dim=1) for steps in outputs if steps]
    return layers, torch.stack(tops, dim=1), torch.stack(weights, dim=1) if weights else None, states


def softmax(z: Tensor) -> Tensor:
    """exp(z) / sum exp(z) over the last dimension."""
    e = (z - z.max(dim=-1, keepdim=True).values).exp()
    return e / e.sum(dim=-1, keepdim=True)


def mixture(logits: Tensor, prior: Tensor) -> Tensor:
    """sum_j pi_j softmax(z_j): logits (*, J, V), prior (*, J)."""
    return (prior.unsqueeze(-1) * softmax(logits)).sum(dim=-2)


def gated(logits: Tensor, features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """z_j / (1 + exp(-(F U' + c))) for each expert j: logits z (*, J, V), F (*, D_g), U (V, D_g), c (V)."""
    return logits / (1 + (-(features @ weight.T + bias)).exp()).unsqueeze(-2)


def lowered(logits: Tensor, latents: Tensor, weight: Tensor, target: Tensor, epsilon: float) -> Tensor:
    """z_{j,v} + [v = y] [w_y . k_j > 0] dw_j . k_j with dw_j = -eps |w_y| k_j / |k_j|: z (*, J, V).

    The gradient treats the change dw_j of the label as a constant, so the change has a gradient by k_j only.
    """
    w, k = weight.detach()[target].unsqueeze(-2), latents.detach()
    changes = -epsilon * w.norm(dim=-1, keepdim=True) * torch.nn.functional.normalize(k, dim=-1, eps=1e-300)
    changes = changes * ((w * k).sum(dim=-1, keepdim=True) > 0)
    is_target = torch.arange(weight.size(0)) == target[..., None, None]
    return logits + (changes * latents).sum(dim=-1, keepdim=True) * is_target


def mixture_loss(
    latents: Tensor,
    prior: Tensor,
    weight: Tensor,
    bias: Tensor,
    target: Tensor,
    smoothing: float = 0.0,
    gate=None,
    epsilon: float = 0.0,
):
    """(1 - e) NLL + e sum_j pi_j mean_v(-log p_j(v)) and the NLL of each token: latents (*, J, d), weight (V, d).

    A gate is (features, weight, bias). Targets' logits are :func:`lowered` before it.
    """
    logits = latents @ weight.T + bias
    logits = lowered(logits, latents, weight, target, epsilon) if epsilon else logits
    logits = logits if gate is None else gated(logits, *gate)
    log_p = mixture(logits, prior).log()
    nll = -log_p.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    return (1 - smoothing) * nll - smoothing * expert_mean(logits, prior), nll


def expert_mean(logits: Tensor, prior: Tensor) -> Tensor:
    """sum_j pi_j mean_v(log p_j(v)) of softmaxes p_j: logits (*, J, V), prior (*, J)."""
    return (prior * (logits - logits.exp().sum(-1, keepdim=True).log()).mean(-1)).sum(-1)


ACTIVATIONS = {
    "sigmoid": lambda x: 1 / (1 + (-x).exp()),
    "relu": lambda x: x * (x > 0),
    "tanh": lambda x: 1 - 2 / (1 + (2 * x).exp()),
    "linear": lambda x: x,
}


def encoded(network, e, activation="sigmoid", *, input_masks=None, output_masks=None) -> Tensor:
    """E^(i) = m'_i act((m_i E^(i-1)) U^(i) + b^(i)) [+ E] [+ E^(i-1) for i >= 2]: labels or hidden states e (*, d)."""
    act, ones = ACTIVATIONS[activation], [1.0] * len(network.layers)
    e_i = e
    for i, (layer, m, m_out) in enumerate(zip(network.layers, input_masks or ones, output_masks or ones), start=1):
        e_before = e_i
        e_i = m_out * act((m * e_before) @ layer.weight.T + layer.bias)
        e_i = e_i + e if network.residual else e_i
        e_i = e_i + e_before if network.layer_residual and i >= 2 else e_i
    return e_i


def label_matrix(output_layer, activation="sigmoid", **masks) -> Tensor:
    """The matrix compared with h^N or k_j, (V, D): E, of the bilinear layer (m E) W, of dual and DRILL E^(k)."""
    e = output_layer.projection.weight
    if output_layer.name == "bilinear":
        (m,) = masks.get("input_masks") or [1.0]
        return (m * e) @ output_layer.bilinear.weight
    network = output_layer.projection.label_encoder
    return e if network is None else encoded(network, e, activation, **masks)


def _softmax_probs(output_layer, layers, labels, hidden, latent_activation):
    if hidden is None:
        network = getattr(output_layer, "hidden_encoder", None)  # of dual
        hidden = layers[-1] if network is None else encoded(network, layers[-1])
    return softmax(hidden @ labels.T + output_layer.projection.bias).unsqueeze(-2), torch.ones_like(hidden[..., :1])


def _mixture_probs(output_layer, layers, labels, hidden, latent_activation):
    d, b = labels.size(1), output_layer.projection.bias
    k = []
    for n, latent in zip(output_layer.source_layers, output_layer.latent_projections):
        joined = ACTIVATIONS[latent_activation](layers[n] @ latent.weight.T + latent.bias)
        k.extend(joined.split(d, dim=-1))
    logits = torch.stack([k_j @ labels.T + b for k_j in k], dim=-2)
    return softmax(logits), softmax(layers[-1] @ output_layer.prior.weight.T)


OUTPUT_LAYERS = {
    **dict.fromkeys(("full", "tied", "bilinear", "dual", "drill"), _softmax_probs),
    **dict.fromkeys(("mos", "doc"), _mixture_probs),
}
"""The softmaxes of every output layer and their prior."""


def output_probs(output_layer, layers, labels=None, hidden=None) -> Tensor:
    """P, (B, T, V), the sum of what :func:`expert_probs` returns."""
    probs, prior = expert_probs(output_layer, layers, labels, hidden)
    return (prior.unsqueeze(-1) * probs).sum(-2)


def expert_probs(output_layer, layers, labels=None, hidden=None, latent_activation="tanh") -> Tuple[Tensor, Tensor]:
    """p_j (B, T, J, V) and pi (B, T, J), J = 1 without a mixture, of layers h^0 .. h^N, (B, T, D_n), without dropout.

    With dropout or another activation than a sigmoid, give the label matrix (V, D) and the encoded h^N (B, T, D).
    """
    labels = label_matrix(output_layer) if labels is None else labels
    return OUTPUT_LAYERS[output_layer.name](output_layer, layers, labels, hidden, latent_activation)
