#!/usr/bin/env python3
"""Time and memory of the loss of an output layer, forward and backward.

Compares, on random inputs of each CASE = VOCABULARY,EXPERTS,WIDTH,TOKENS:

  fused      fairseq_plugins.ops.mixture_nll
  published  softmax of every expert, times the prior, summed, logarithm, by autograd, as the papers' programs do it
             (one expert: cross-entropy of all logits)
  plain      the same with the weighted sum as a matrix product, the fastest form we know without a fused loss
  floor      the three matrix products of the fused path alone, chunk by chunk, by the same kernels
  tied       one softmax over the same words for the same tokens, fused
  torch      one expert only: torch.nn.functional.linear_cross_entropy, chunked, where torch has it

Times are medians of repetitions that are interleaved in both orders. Memory is the peak while one path runs
once in a process of its own, less what is there before; what is left without the gradients of the inputs is given
beside it for the fused path.
Writes output_layer_DEVICE_DTYPE.md and .json.
"""

import argparse
import json
import multiprocessing
import re
import statistics
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Callable, Dict, List, Optional

import torch
import torch.nn.functional as F
from provenance import provenance
from torch import Tensor
from tqdm import tqdm

from fairseq_plugins.cli import quiet_host_logging
from fairseq_plugins.ops.chunks import default_chunk_size
from fairseq_plugins.ops.matmul import add_matmul, matmul
from fairseq_plugins.ops.mixture_nll import mixture_nll
from fairseq_plugins.ops.precision import accumulation_dtype

DEFAULT_CASES = [
    *("10000,20,280,420", "10000,20,280,1680", "33280,20,280,280", "33280,20,280,1120"),
    *("10000,1,400,1400", "33280,1,400,1200", "267735,1,400,600"),
]
STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Case:
    """Sizes of one comparison."""

    vocab_size: int
    num_experts: int
    width: int
    num_tokens: int

    @classmethod
    def parse(cls, text: str) -> "Case":
        """Read ``VOCABULARY,EXPERTS,WIDTH,TOKENS``."""
        if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*){3}", text):
            raise argparse.ArgumentTypeError(f'"{text}": give four numbers, VOCABULARY,EXPERTS,WIDTH,TOKENS')
        return cls(*map(int, text.split(",")))


class Inputs:
    """Random inputs of a loss: latents (N, J, d), scores of the prior (N, J), W (V, d), b (V), targets (N)."""

    def __init__(self, case: Case, *, device: torch.device, dtype: torch.dtype):
        torch.manual_seed(0)
        options = {"device": device, "dtype": dtype}
        self.latents = torch.tanh(torch.randn(case.num_tokens, case.num_experts, case.width, **options))
        self.scores = torch.randn(case.num_tokens, case.num_experts, **options)
        self.weight = 0.1 * torch.randn(case.vocab_size, case.width, **options)
        self.bias = torch.zeros(case.vocab_size, **options)
        self.target = torch.randint(case.vocab_size, (case.num_tokens,), device=device)
        self.single = self.latents[:, :1].clone()
        for leaf in self.leaves:
            leaf.requires_grad_()

    @property
    def leaves(self) -> List[Tensor]:
        return [self.latents, self.single, self.scores, self.weight, self.bias]

    def clear_gradients(self) -> None:
        for leaf in self.leaves:
            leaf.grad = None

    def gradient_bytes(self) -> int:
        return sum(leaf.grad.nbytes for leaf in self.leaves if leaf.grad is not None)


def fused(x: Inputs) -> None:
    log_prior = torch.log_softmax(x.scores, dim=-1, dtype=accumulation_dtype(x.scores))
    mixture_nll(x.latents, log_prior, x.weight, x.target, bias=x.bias).loss.backward()


def published(x: Inputs) -> None:
    logits = F.linear(x.latents, x.weight, x.bias)
    if logits.size(1) == 1:
        loss = F.cross_entropy(logits.squeeze(1), x.target, reduction="sum")
    else:
        probs = (torch.softmax(logits, dim=-1) * torch.softmax(x.scores, dim=-1).unsqueeze(-1)).sum(dim=1)
        loss = F.nll_loss(torch.log(probs + 1e-8), x.target, reduction="sum")
    loss.backward()


def plain(x: Inputs) -> None:
    experts = torch.softmax(F.linear(x.latents, x.weight, x.bias), dim=-1)
    probs = torch.bmm(torch.softmax(x.scores, dim=-1).unsqueeze(1), experts).squeeze(1)
    F.nll_loss(torch.log(probs), x.target, reduction="sum").backward()


@torch.no_grad()
def floor(x: Inputs) -> None:
    num_experts, width = x.latents.shape[1:]
    vocab_size = x.weight.size(0)
    chunk_size = default_chunk_size(num_experts, vocab_size, dtype=accumulation_dtype(x.weight), device=x.weight.device)
    x.latents.grad, x.weight.grad = torch.empty_like(x.latents), torch.zeros_like(x.weight)
    for first in range(0, len(x.target), chunk_size):
        rows = x.latents[first : first + chunk_size].view(-1, width)
        chunk = matmul(rows, x.weight.t())
        x.latents.grad[first : first + chunk_size] = matmul(chunk, x.weight).view(-1, num_experts, width)
        add_matmul(x.weight.grad, chunk.t(), rows)


def tied(x: Inputs) -> None:
    certain = x.scores.new_zeros(len(x.target), 1, dtype=accumulation_dtype(x.scores))
    mixture_nll(x.single, certain, x.weight, x.target, bias=x.bias).loss.backward()


def library(x: Inputs) -> None:
    F.linear_cross_entropy(
        x.latents.squeeze(1),
        x.weight,
        x.target,
        linear_bias=x.bias,
        reduction="sum",
        options=torch.nn.LinearCrossEntropyOptions(batch_chunk_size=512),
    ).backward()


def paths_of(case: Case) -> Dict[str, Callable[[Inputs], None]]:
    """The paths that are compared on a case."""
    paths = {"fused": fused, "published": published, "floor": floor}
    if case.num_experts > 1:
        paths.update(plain=plain, tied=tied)
    elif hasattr(F, "linear_cross_entropy"):
        paths["torch"] = library
    return paths


def run_once(path: Callable[[Inputs], None], x: Inputs) -> float:
    """Seconds of one forward and backward pass."""
    x.clear_gradients()
    wait = torch.cuda.synchronize if x.weight.is_cuda else lambda: None
    wait()
    start = time.perf_counter()
    path(x)
    wait()
    return time.perf_counter() - start


def median_times(case: Case, *, device, dtype, num_repetitions: int) -> Dict[str, float]:
    """Median seconds of each path."""
    x, paths = Inputs(case, device=device, dtype=dtype), paths_of(case)
    times = {name: [] for name in paths}
    for path in paths.values():
        run_once(path, x)
    for repetition in range(num_repetitions):
        for name in list(paths) if repetition % 2 else reversed(list(paths)):
            times[name].append(run_once(paths[name], x))
    return {name: statistics.median(values) for name, values in times.items()}


def peak_memory(case: Case, name: str, *, device: torch.device, dtype: torch.dtype) -> Optional[Dict[str, int]]:
    """Bytes at the peak of one path less those before it, and of the gradients; None where it is not known."""
    if device.type != "cuda" and not STATUS.exists():
        return None
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak_memory, (case, name, device, dtype, torch.get_num_threads()))


def _peak_memory(case: Case, name: str, device: torch.device, dtype: torch.dtype, num_threads: int) -> Dict[str, int]:
    torch.set_num_threads(num_threads)
    path = paths_of(case)[name]
    path(Inputs(Case(64, case.num_experts, 8, 4), device=device, dtype=dtype))  # load the libraries
    x = Inputs(case, device=device, dtype=dtype)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        path(x)
        return {"peak": torch.cuda.max_memory_allocated() - before, "gradients": x.gradient_bytes()}
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _status("VmRSS")
    path(x)
    return {"peak": _status("VmHWM") - before, "gradients": x.gradient_bytes()}


def _status(name: str) -> int:
    return 1024 * int(re.search(rf"^{name}:\s*(\d+) kB", STATUS.read_text(), re.M).group(1))


def measure(case: Case, **options) -> Dict:
    """Figures of one case."""
    times = median_times(case, **options)
    del options["num_repetitions"]
    memory = {name: peak_memory(case, name, **options) for name in times}
    return {**vars(case), "seconds": times, "memory_bytes": memory}


def as_markdown(results: List[Dict]) -> str:
    """Times, memory, and the ratios."""
    times = ("fused", "published", "plain", "floor", "tied", "torch")
    titles = [
        *("V", "J", "d", "tokens"),
        *times,
        *("fused / floor", "fused / published", "fused / plain"),
        *("memory: fused", "published", "plain", "tied", "fused / published", "fused, beyond gradients"),
    ]
    lines = ["| " + " | ".join(titles) + " |", "|" + "--:|" * len(titles)]
    for result in results:
        seconds = result["seconds"]
        memory = {name: value for name, value in result["memory_bytes"].items() if value is not None}
        peaks = {name: value["peak"] for name, value in memory.items()}
        beyond = {name: value["peak"] - value["gradients"] for name, value in memory.items()}
        cells = [f"{result[name]:,}" for name in ("vocab_size", "num_experts", "width", "num_tokens")]
        cells += [f"{seconds[name] * 1e3:,.0f} ms" if name in seconds else "" for name in times]
        cells += [_ratio(seconds, "fused", name, digits=2) for name in ("floor", "published", "plain")]
        cells += [_mebibytes(peaks, name) for name in ("fused", "published", "plain", "tied")]
        cells += [_ratio(peaks, "fused", "published", digits=3), _mebibytes(beyond, "fused")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _mebibytes(bytes_of: Dict[str, int], name: str) -> str:
    return f"{bytes_of[name] / 2**20:,.0f} MiB" if name in bytes_of else ""


def _ratio(values: Dict[str, float], name: str, other: str, *, digits: int) -> str:
    return f"{values[name] / values[other]:.{digits}f}" if name in values and other in values else ""


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "cases",
        nargs="*",
        type=Case.parse,
        metavar="CASE",
        default=[Case.parse(text) for text in DEFAULT_CASES],
        help=f"VOCABULARY,EXPERTS,WIDTH,TOKENS (default: {' '.join(DEFAULT_CASES)})",
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="CPU threads (default: all)")
    parser.add_argument("--repetitions", type=int, default=9, help="timed repetitions (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"), help="directory (default: %(default)s)")
    args = parser.parse_args()
    quiet_host_logging()
    torch.set_num_threads(args.threads)
    run = partial(
        measure,
        device=torch.device(args.device),
        dtype=getattr(torch, args.dtype),
        num_repetitions=args.repetitions,
    )
    origin = {**provenance(), "device": args.device, "dtype": args.dtype, "num_threads": args.threads}
    results = [run(case) for case in tqdm(args.cases, unit="case", disable=not sys.stderr.isatty())]
    table = as_markdown(results)
    command = "python scripts/benchmark_output_layer.py " + " ".join(sys.argv[1:])
    footer = (
        f"\nForward and backward, {args.dtype} on {args.device}, {args.threads} CPU threads, medians of "
        f"{args.repetitions} interleaved repetitions; memory at the peak beyond the inputs.\n"
        f"`{command.strip()}`; {origin['date']}, commit {origin['commit']}; {origin['machine']}.\n"
    )
    args.out.mkdir(parents=True, exist_ok=True)
    stem = args.out / f"output_layer_{args.device}_{args.dtype}"
    stem.with_suffix(".md").write_text(table + footer, encoding="utf-8")
    content = {**origin, "command": command.strip(), "repetitions": args.repetitions, "cases": results}
    stem.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(table + footer)


if __name__ == "__main__":
    main()
