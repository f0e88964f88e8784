"""Which set of functions the loss of a mixture runs on, by device and ``--output-kernels``."""

import logging
import os
from functools import lru_cache

import torch

from fairseq_plugins.ops.kernels import CPU, PLAIN, Kernels
from fairseq_plugins.options import UserError

logger = logging.getLogger(__name__)

KERNEL_NAMES = ["auto", "plain", "triton"]
"""Values of ``--output-kernels``."""
TRITON_CAPABILITY = (8, 0)
"""Lowest compute capability on which Triton's kernels are used."""


def choose_kernels(device: torch.device, name: str = "auto") -> Kernels:
    """The set for a device. "auto" is the CPU's own set, on other devices Triton's if it works, else plain torch.

    Args:
        name: a value of ``--output-kernels``.

    Raises:
        UserError: if Triton is asked for and does not work there.
    """
    if name == "plain":
        return PLAIN
    if name == "auto" and device.type == "cpu":
        return CPU
    trouble = trouble_with_triton(device)
    if not trouble:
        from fairseq_plugins.ops.triton_mixture import TRITON  # compiles nothing yet, but imports Triton

        return TRITON
    if name == "triton":
        raise UserError(f"--output-kernels triton: {trouble}; give --output-kernels auto")
    return PLAIN


@lru_cache(maxsize=None)
def trouble_with_triton(device: torch.device) -> str:
    """Why Triton's kernels cannot be used on a device, or "" if they can. The reason is logged once on a GPU."""
    trouble = _trouble_with_triton(device)
    if device.type == "cuda":
        logger.info(f"--output-kernels: plain ({trouble})" if trouble else "--output-kernels: triton")
    return trouble


def _trouble_with_triton(device: torch.device) -> str:
    is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if device.type != "cuda" and not is_interpreted:
        return f"Triton has no kernels for this {device.type}"
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < TRITON_CAPABILITY:
        return "the GPU is older than compute capability 8.0"
    try:
        from fairseq_plugins.ops.triton_mixture import TRITON

        return "" if equals_plain(TRITON, device) else "its results differ from those of plain torch"
    except Exception as error:  # compilers, drivers and versions raise many types
        return f"Triton does not run: {' '.join(str(error).split())[:200]}"


def equals_plain(kernels: Kernels, device: torch.device) -> bool:
    """Whether a set of functions gives the same losses, gradients and distributions as plain torch in float32.

    Small chunks try both types of logits, with and without label smoothing and interpolation, in pairs. Kernels for
    other numbers of words are compiled when they are first used.
    """
    generator = torch.Generator().manual_seed(0)
    drawn, prior = torch.randn(6, 33, generator=generator), torch.randn(2, 3, generator=generator)
    log_prior, weights = torch.log_softmax(prior, dim=1).to(device), torch.tensor([1.0, 0.5], device=device)
    target = torch.tensor([0, 32], device=device)
    for dtype, smoothing, posterior in (
        (torch.float32, 0.0, None),
        (torch.float32, 0.1, weights),
        (torch.bfloat16, 0.0, weights),
        (torch.bfloat16, 0.1, None),
    ):
        logits = drawn.to(device, dtype)
        mean_logits = logits.float().mean(dim=1).view_as(log_prior) if smoothing else None
        ours = log_prior.new_empty(2, 33)
        kernels.log_mixture(logits, log_prior, out=ours)
        log_softmax = torch.log_softmax(logits.float(), dim=1).view(2, 3, 33)
        results = [[ours], [torch.logsumexp(log_softmax + log_prior.unsqueeze(2), dim=1)]]
        for one, given, found in zip((kernels, PLAIN), (logits, logits.float()), results):
            chunk = one.make_chunk(
                logits=given.clone(),
                log_prior=log_prior,
                target=target,
                keep_logits=False,
                label_smoothing=smoothing,
                mean_logits=mean_logits,
            )
            gradient, d_log_prior = chunk.backward(weights, posterior)
            rows = gradient._replace(rows=gradient.rows.float()).materialize().rows
            found.extend((chunk.loss, chunk.nll, d_log_prior, rows))
        rounding = 2**-7 if dtype == torch.bfloat16 else 1e-5  # of a probability in the rows
        if not all(torch.allclose(a, b, atol=t) for a, b, t in zip(*results, (*[1e-5] * 4, rounding))):
            return False
    return True
