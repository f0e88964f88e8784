"""References for the tests, one line of code per line of the papers' formulas."""

import torch
from torch import Tensor


def lstm(x: Tensor, h: Tensor, c: Tensor, w_x: Tensor, w_h: Tensor, b_x: Tensor, b_h: Tensor):
    """An LSTM step by step: x (B, T, C), h and c (B, D); returns the outputs (B, T, D), h and c."""
    outputs = []
    for x_t in x.unbind(1):
        i, f, g, o = (x_t @ w_x.T + b_x + h @ w_h.T + b_h).chunk(4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs, dim=1), h, c


def softmax(z: Tensor) -> Tensor:
    """exp(z) / sum exp(z) over the last dimension."""
    e = (z - z.max(dim=-1, keepdim=True).values).exp()
    return e / e.sum(dim=-1, keepdim=True)


def mixture(logits: Tensor, prior: Tensor) -> Tensor:
    """sum_j pi_j softmax(z_j): logits (*, J, V), prior (*, J)."""
    return (prior.unsqueeze(-1) * softmax(logits)).sum(dim=-2)


def mixture_nll_gradients(logits: Tensor, prior: Tensor, target: Tensor):
    """d(-log P(y)) / dz and / d log pi from r_j = pi_j p_j(y) / P(y): -r_j (1[v = y] - p_j(v)) and -r_j."""
    p = softmax(logits)
    y = target[..., None, None].expand(*target.shape, logits.size(-2), 1)
    joint = prior * p.gather(-1, y).squeeze(-1)
    r = joint / joint.sum(dim=-1, keepdim=True)
    one_hot = torch.zeros_like(logits).scatter(-1, y, 1.0)
    return -r.unsqueeze(-1) * (one_hot - p), -r


def mixture_loss(latents: Tensor, prior: Tensor, weight: Tensor, bias: Tensor, target: Tensor, smoothing: float = 0.0):
    """(1 - e) NLL + e mean_v(-log P(v)) and the NLL of each token: latents (*, J, d), prior (*, J), weight (V, d)."""
    log_p = mixture(latents @ weight.T + bias, prior).log()
    nll = -log_p.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    return (1 - smoothing) * nll - smoothing * log_p.mean(dim=-1), nll


def output_probs(output_layer, layers) -> Tensor:
    """Distribution of a tied, full, mos or doc layer without dropout, layers h^0 .. h^N each (B, T, D_n)."""
    projection = output_layer.projection
    w, b = projection.weight, projection.bias
    if not hasattr(output_layer, "prior"):
        return softmax(layers[-1] @ w.T + b)
    d = w.size(1)
    k = []
    for n, latent in zip(output_layer.source_layers, output_layer.latents):
        joined = torch.tanh(layers[n] @ latent.weight.T + latent.bias)
        k.extend(joined.split(d, dim=-1))
    logits = torch.stack([k_j @ w.T + b for k_j in k], dim=-2)
    return mixture(logits, softmax(layers[-1] @ output_layer.prior.weight.T))
