"""Time and memory of the loss of an output layer, forward and backward, by several methods that give the same loss.

Noise-contrastive estimation, which is another loss, stands beside them where there is one softmax.

Shapes: N tokens, J experts, d width, V vocabulary, K noise words.
"""

import math
import multiprocessing
import re
import statistics
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional

import torch
import torch.nn.functional as F
from torch import nn

from fairseq_plugins.benchmarks.output_layer_inputs import NUM_NOISE_WORDS, Case, Inputs
from fairseq_plugins.ops.chunks import default_chunk_size
from fairseq_plugins.ops.matmul import add_matmul, matmul
from fairseq_plugins.ops.mixture_nll import mixture_nll
from fairseq_plugins.ops.native_bfloat16 import has_native_bfloat16
from fairseq_plugins.ops.noise_contrast import noise_contrast
from fairseq_plugins.ops.precision import accumulation_dtype
from fairseq_plugins.output_layers.noise import Noise
from fairseq_plugins.output_layers.noise_log_odds import noise_log_odds
from fairseq_plugins.output_layers.word_projection import WordProjection

DEFAULT_CASES = [
    "10000,20,280,420",
    "10000,20,280,1680",
    "33280,20,280,280",
    "33280,20,280,1120",
    "10000,1,400,1400",
    "33280,1,400,1200",
    "67428,1,512,1280",
    "267735,1,400,600",
]
NOISE = f"told from {NUM_NOISE_WORDS} noise words"

STATUS = Path("/proc/self/status")


def fused(x: Inputs, *, chunk_size: Optional[int] = None, chunk_dtype: Optional[torch.dtype] = None) -> None:
    """The loss of this package, ``fairseq_plugins.ops.mixture_nll``, in chunks of its own size and type or of these."""
    log_prior = torch.log_softmax(x.scores, dim=-1, dtype=accumulation_dtype(x.scores))
    found = mixture_nll(
        x.latents, log_prior, x.weight, x.target, bias=x.bias, chunk_size=chunk_size, chunk_dtype=chunk_dtype
    )
    found.loss.backward()


def published(x: Inputs) -> None:
    """As the papers' programs do it, by autograd: softmax of every expert, times the prior, summed, logarithm.

    With one expert it is the cross-entropy of all logits.
    """
    logits = F.linear(x.latents, x.weight, x.bias)
    if logits.size(1) == 1:
        loss = F.cross_entropy(logits.squeeze(1), x.target, reduction="sum")
    else:
        probs = (torch.softmax(logits, dim=-1) * torch.softmax(x.scores, dim=-1).unsqueeze(-1)).sum(dim=1)
        loss = F.nll_loss(torch.log(probs + 1e-8), x.target, reduction="sum")
    loss.backward()


def plain(x: Inputs) -> None:
    """The same with the weighted sum as a matrix product, the fastest form we know without a fused loss."""
    experts = torch.softmax(F.linear(x.latents, x.weight, x.bias), dim=-1)
    probs = torch.bmm(torch.softmax(x.scores, dim=-1).unsqueeze(1), experts).squeeze(1)
    F.nll_loss(torch.log(probs), x.target, reduction="sum").backward()


def own_chunk_size(x: Inputs) -> int:
    """Tokens of a chunk of the fused loss where no size is given."""
    dtype, device = accumulation_dtype(x.weight), x.weight.device
    return default_chunk_size(x.latents.size(1), x.weight.size(0), dtype=dtype, device=device)


@torch.no_grad()
def floor(x: Inputs, *, chunk_size: Optional[int] = None, chunk_dtype: Optional[torch.dtype] = None) -> None:
    """The three matrix products of the fused loss alone, chunk by chunk, by the same kernels.

    The operands are cast to ``chunk_dtype``; the gradients have the type of the inputs.
    """
    num_experts, width = x.latents.shape[1:]
    chunk_size = chunk_size or own_chunk_size(x)
    latents, weight = x.latents.to(chunk_dtype or x.latents.dtype), x.weight.to(chunk_dtype or x.weight.dtype)
    x.latents.grad, x.weight.grad = torch.empty_like(x.latents), torch.zeros_like(x.weight)
    for first in range(0, len(x.target), chunk_size):
        rows = latents[first : first + chunk_size].view(-1, width)
        chunk = matmul(rows, weight.t())
        x.latents.grad[first : first + chunk_size] = matmul(chunk, weight).view(-1, num_experts, width)
        add_matmul(x.weight.grad, chunk.t(), rows)


def tied(x: Inputs) -> None:
    """One softmax over the same words for the same tokens, fused."""
    certain = x.scores.new_zeros(len(x.target), 1, dtype=accumulation_dtype(x.scores))
    mixture_nll(x.single, certain, x.weight, x.target, bias=x.bias).loss.backward()


def library(x: Inputs) -> None:
    """torch's chunked cross-entropy, for one expert, where torch has it."""
    F.linear_cross_entropy(
        x.latents.squeeze(1),
        x.weight,
        x.target,
        linear_bias=x.bias,
        reduction="sum",
        options=torch.nn.LinearCrossEntropyOptions(batch_chunk_size=512),
    ).backward()


def noise_contrastive(x: Inputs) -> None:
    """Each target told from words that are drawn for it; only the rows of W of these have a gradient."""
    words = x.noise.draw((len(x.target), NUM_NOISE_WORDS), device=x.weight.device)
    log_vocab_size = math.log(len(x.weight))
    noise = Noise(
        words=words,
        offsets=x.noise.log_expected(words) + log_vocab_size,
        target_offsets=x.noise.log_expected(x.target) + log_vocab_size,
        gradients="sparse",
    )
    projection = WordProjection(x.weight.size(1), len(x.weight), shared_weight=nn.Parameter(x.weight), bias="off")
    log_odds = noise_log_odds(projection, x.single.squeeze(1), x.target, noise)
    noise_contrast(*log_odds, words == x.target.unsqueeze(-1)).sum().backward()
    x.weight.grad = projection.weight.grad


Method = Callable[[Inputs], None]
"""Computes a loss and its gradients."""


def methods_of(case: Case, *, device: torch.device, dtype: torch.dtype) -> Dict[str, Method]:
    """The methods that are compared on a case, by name; in float32 chunks of bfloat16, too, where they are native."""
    methods: Dict[str, Method] = {"fused": fused, "published": published, "floor": floor}
    if case.num_experts > 1:
        methods.update(plain=plain, tied=tied)
    else:
        methods[NOISE] = noise_contrastive
        if hasattr(F, "linear_cross_entropy"):
            methods["torch"] = library
    if dtype == torch.float32 and has_native_bfloat16(device):
        for name, method in (("fused", fused), ("floor", floor)):
            methods[f"{name}, bfloat16 chunks"] = partial(method, chunk_dtype=torch.bfloat16)
    return methods


def run_once(method: Method, x: Inputs) -> float:
    """Seconds of one forward and backward pass."""
    x.clear_gradients()
    wait = torch.cuda.synchronize if x.weight.is_cuda else lambda: None
    wait()
    start = time.perf_counter()
    method(x)
    wait()
    return time.perf_counter() - start


def median_times(x: Inputs, methods: Mapping[str, Method], *, num_repetitions: int) -> Dict[str, float]:
    """Median seconds of each method; repetitions are interleaved in both orders."""
    times: Dict[str, List[float]] = {name: [] for name in methods}
    for method in methods.values():
        run_once(method, x)
    for repetition in range(num_repetitions):
        for name in list(methods) if repetition % 2 else reversed(list(methods)):
            times[name].append(run_once(methods[name], x))
    return {name: statistics.median(values) for name, values in times.items()}


def peak_memory(case: Case, name: str, *, device: torch.device, dtype: torch.dtype) -> Optional[Dict[str, int]]:
    """Bytes at the peak of one method beyond its inputs, and of the gradients; None where it is not known.

    The method runs once in a process of its own. Where that process is killed, for want of memory as a rule, a warning
    says so, and nothing is known.
    """
    if device.type != "cuda" and not STATUS.exists():
        return None
    context = multiprocessing.get_context("forkserver")  # its server imports torch once, and holds nothing else
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(_peak_memory, case, name, device, dtype, torch.get_num_threads()).result()
        except BrokenProcessPool:
            told = f"{name}, {case}: its process was killed, for want of memory as a rule; its memory is left empty"
            warnings.warn(told, stacklevel=2)
            return None


def allocated_peak(method: Method, x: Inputs) -> int:
    """Bytes at the peak of one method beyond its inputs, on a GPU."""
    x.clear_gradients()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    method(x)
    return torch.cuda.max_memory_allocated() - before


def _peak_memory(case: Case, name: str, device: torch.device, dtype: torch.dtype, num_threads: int) -> Dict[str, int]:
    torch.set_num_threads(num_threads)
    method = methods_of(case, device=device, dtype=dtype)[name]
    method(Inputs(Case(64, case.num_experts, 8, 4), device=device, dtype=dtype))  # load the libraries
    x = Inputs(case, device=device, dtype=dtype)
    if device.type == "cuda":
        return {"peak": allocated_peak(method, x), "gradients": x.gradient_bytes()}
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _status("VmRSS")
    method(x)
    return {"peak": _status("VmHWM") - before, "gradients": x.gradient_bytes()}


def _status(name: str) -> int:
    found = re.search(rf"^{name}:\s*(\d+) kB", STATUS.read_text(), re.M)
    assert found is not None, f"{STATUS} has no {name}"
    return 1024 * int(found.group(1))


def measure(case: Case, *, device: torch.device, dtype: torch.dtype, num_repetitions: int) -> Dict[str, Any]:
    """Figures of one case: its sizes, ``seconds`` and ``memory_bytes`` by method."""
    x = Inputs(case, device=device, dtype=dtype)
    times = median_times(x, methods_of(case, device=device, dtype=dtype), num_repetitions=num_repetitions)
    memory = {name: peak_memory(case, name, device=device, dtype=dtype) for name in times}
    return {**asdict(case), "seconds": times, "memory_bytes": memory}
