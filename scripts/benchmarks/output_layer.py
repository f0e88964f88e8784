"""Time and memory of the loss of an output layer, forward and backward: fused, as published, plain.

Methods, on random inputs of each CASE = VOCABULARY,EXPERTS,WIDTH,TOKENS:

  fused      fairseq_plugins.ops.mixture_loss
  published  softmax of every expert, times the prior, summed, logarithm, by autograd, as the papers' programs do it
             (one expert: cross-entropy of all logits)
  plain      the same with the weighted sum as a matrix product, the fastest form we know without a fused loss
  floor      the three matrix products of the fused method alone, chunk by chunk, by the same kernels
  tied       one softmax over the same words for the same tokens, fused
  torch      one expert only: torch.nn.functional.linear_cross_entropy, chunked, where torch has it
  noise      one expert only: noise-contrastive estimation, another loss

With --dtype float32, where the device has products in bfloat16, there are two more: "fused, bfloat16 chunks", as
--output-precision bfloat16 trains, and "floor, bfloat16 chunks", its products alone, with the cast of their operands.

Times are medians of repetitions that are interleaved in both orders. Memory is the peak while one method runs once in
its own process, without the inputs. Writes output_layer_DEVICE_DTYPE.md, .json and .png.
"""

# Shapes: N tokens, J experts, d width, V vocabulary, K noise words.

import argparse
import math
import multiprocessing
import re
import statistics
import warnings
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence

import torch
import torch.nn.functional as F
from benchmark import main, readings_by_turns, seconds_of, write_report
from torch import Tensor, nn

from fairseq_plugins.command_line import add_cpu, add_out, choose_device
from fairseq_plugins.console import Command, progress
from fairseq_plugins.criterions.noise_contrastive import UnigramNoise
from fairseq_plugins.ops.kernels import Kernels
from fairseq_plugins.ops.matmul import accumulation_dtype, add_matmul, has_native_bfloat16, matmul
from fairseq_plugins.ops.mixture_chunk import default_chunk_size
from fairseq_plugins.ops.mixture_loss import mixture_nll
from fairseq_plugins.ops.noise_contrastive import noise_contrast
from fairseq_plugins.options import count
from fairseq_plugins.output_layers.projected import WordProjection
from fairseq_plugins.output_layers.scores import Noise
from fairseq_plugins.output_layers.softmax import noise_log_odds
from fairseq_plugins.reports.pictures import new_picture
from fairseq_plugins.reports.report import Report
from fairseq_plugins.reports.tables import as_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NUM_NOISE_WORDS = 25
"""K, the noise words for each target."""


@dataclass(frozen=True)
class Case:
    """Sizes of one comparison.

    Attributes:
        vocab_size: V.
        num_experts: J, softmaxes of the mixture.
        width: d, width of the expert hidden states.
        num_tokens: N.
    """

    vocab_size: int
    num_experts: int
    width: int
    num_tokens: int

    @classmethod
    def parse(cls, text: str) -> "Case":
        """Read ``VOCABULARY,EXPERTS,WIDTH,TOKENS``.

        Raises:
            ArgumentTypeError: if these are not four whole numbers above zero.
        """
        if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*){3}", text):
            raise argparse.ArgumentTypeError(f'"{text}": give four numbers, VOCABULARY,EXPERTS,WIDTH,TOKENS')
        return cls(*map(int, text.split(",")))


class Inputs:
    """Random inputs of a loss: ``latents`` (N, J, d), prior scores (N, J), W (V, d), b (V), targets (N).

    ``latents`` are the expert hidden states. ``single`` (N, 1, d) is the input of one softmax over the same words.
    """

    def __init__(self, case: Case, *, device: torch.device, dtype: torch.dtype) -> None:
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
        """The tensors that get gradients."""
        return [self.latents, self.single, self.scores, self.weight, self.bias]

    @cached_property
    def noise(self) -> UnigramNoise:
        """Noise in which all words are equally likely, so that as many rows of W as possible are read."""
        counts = torch.ones(len(self.weight), dtype=torch.long)
        return UnigramNoise(counts, num_samples=NUM_NOISE_WORDS)

    def clear_gradients(self) -> None:
        """Delete the gradients of an earlier pass."""
        for leaf in self.leaves:
            leaf.grad = None

    def gradient_bytes(self) -> int:
        """Memory of the gradients."""
        gradients = [leaf.grad for leaf in self.leaves if leaf.grad is not None]
        parts = [[x.coalesce().indices(), x.coalesce().values()] if x.is_sparse else [x] for x in gradients]
        return sum(part.nbytes for gradient in parts for part in gradient)


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
NOISE = f"NCE, {NUM_NOISE_WORDS} noise words"

STATUS = Path("/proc/self/status")


def fused(x: Inputs, *, chunk_dtype: Optional[torch.dtype] = None, kernels: Optional[Kernels] = None) -> None:
    """The loss of this package, ``fairseq_plugins.ops.mixture_loss``, in chunks of the given dtype."""
    log_prior = torch.log_softmax(x.scores, dim=-1, dtype=accumulation_dtype(x.scores))
    options = dict(chunk_dtype=chunk_dtype, kernels=kernels)
    mixture_nll(x.latents, log_prior, x.weight, x.target, bias=x.bias, **options).loss.backward()


def published(x: Inputs) -> None:
    """The loss of the papers' programs, by autograd: logarithm of the sum of every expert's softmax times its prior.

    With one expert, it is the cross-entropy of all logits.
    """
    logits = F.linear(x.latents, x.weight, x.bias)
    if logits.size(1) == 1:
        loss = F.cross_entropy(logits.squeeze(1), x.target, reduction="sum")
    else:
        probs = (torch.softmax(logits, dim=-1) * torch.softmax(x.scores, dim=-1).unsqueeze(-1)).sum(dim=1)
        loss = F.nll_loss(torch.log(probs + 1e-8), x.target, reduction="sum")
    loss.backward()


def plain(x: Inputs) -> None:
    """The same loss with the weighted sum as a matrix product, the fastest form we know without a fused loss."""
    experts = torch.softmax(F.linear(x.latents, x.weight, x.bias), dim=-1)
    probs = torch.bmm(torch.softmax(x.scores, dim=-1).unsqueeze(1), experts).squeeze(1)
    F.nll_loss(torch.log(probs), x.target, reduction="sum").backward()


@torch.no_grad()
def floor(x: Inputs, *, chunk_dtype: Optional[torch.dtype] = None) -> None:
    """The three matrix products of the fused loss alone, chunk by chunk, by the same kernels.

    Operands are cast to ``chunk_dtype``. Gradients keep the dtype of the inputs.
    """
    num_experts, width = x.latents.shape[1:]
    dtype, device = accumulation_dtype(x.weight), x.weight.device
    chunk_size = default_chunk_size(num_experts, x.weight.size(0), dtype=dtype, device=device)
    latents, weight = x.latents.to(chunk_dtype or x.latents.dtype), x.weight.to(chunk_dtype or x.weight.dtype)
    x.latents.grad, x.weight.grad = torch.empty_like(x.latents), torch.zeros_like(x.weight)
    for first in range(0, len(x.target), chunk_size):
        rows = latents[first : first + chunk_size].view(-1, width)
        chunk = matmul(rows, weight.t())
        x.latents.grad[first : first + chunk_size] = matmul(chunk, weight).view(-1, num_experts, width)
        add_matmul(x.weight.grad, chunk.t(), rows)


def tied(x: Inputs) -> None:
    """The fused loss of one softmax over the same words for the same tokens."""
    certain = x.scores.new_zeros(len(x.target), 1, dtype=accumulation_dtype(x.scores))
    mixture_nll(x.single, certain, x.weight, x.target, bias=x.bias).loss.backward()


def library(x: Inputs) -> None:
    """The chunked cross-entropy of new versions of torch, for one expert."""
    F.linear_cross_entropy(
        x.latents.squeeze(1),
        x.weight,
        x.target,
        linear_bias=x.bias,
        reduction="sum",
        options=torch.nn.LinearCrossEntropyOptions(batch_chunk_size=512),
    ).backward()


def noise_contrastive(x: Inputs) -> None:
    """Noise-contrastive estimation with noise words for each target. Only the rows of W that are read get gradients."""
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
    """Methods that are compared on a case. If inputs are float32 and bfloat16 is native, chunks in bfloat16, too."""
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
    return seconds_of(lambda: method(x), device=x.weight.device.type)


def seconds_by_turns(x: Inputs, methods: Mapping[str, Method], *, num_repetitions: int) -> Dict[str, List[float]]:
    """Seconds of each repetition of each method."""
    runs = {name: partial(run_once, method, x) for name, method in methods.items()}
    return readings_by_turns(runs, num_rounds=num_repetitions)


def peak_memory(case: Case, name: str, *, device: torch.device, dtype: torch.dtype) -> Optional[Dict[str, int]]:
    """Peak memory of a method in bytes without its inputs, and memory of the gradients. None if they are not known.

    The method runs once in its own process. If that process is killed, usually because memory runs out, the result is
    None with a warning.
    """
    if device.type != "cuda" and not STATUS.exists():
        return None
    context = multiprocessing.get_context("forkserver")  # its server imports torch once, and holds nothing else
    context.set_forkserver_preload(["fairseq_plugins"])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(_peak_memory, case, name, device, dtype, torch.get_num_threads()).result()
        except BrokenProcessPool:
            message = f"{name}, {case}: its process was killed, usually because memory ran out; its memory is not shown"
            warnings.warn(message, stacklevel=2)
            return None


def allocated_peak(method: Method, x: Inputs) -> int:
    """Peak memory of a method on a GPU in bytes, without its inputs."""
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
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
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
    times = seconds_by_turns(x, methods_of(case, device=device, dtype=dtype), num_repetitions=num_repetitions)
    medians = {name: statistics.median(values) for name, values in times.items()}
    memory = {name: peak_memory(case, name, device=device, dtype=dtype) for name in times}
    return {**asdict(case), "seconds": medians, "memory_bytes": memory}


# Table and picture.

METHODS = ("fused", "published", "plain", "floor", "tied", "torch")
NARROW, NARROW_FLOOR = "fused, bfloat16 chunks", "floor, bfloat16 chunks"
SIZES = ("vocab_size", "num_experts", "width", "num_tokens")
BARS = {
    "published": ("as the papers' programs do it", "#b0b0b0"),
    "plain": ("plain PyTorch", "#7f7f7f"),
    "torch": ("PyTorch's chunked loss", "#7f7f7f"),
    "fused": ("this package", "#d1495b"),
    "floor": ("its matrix products alone", "#edae49"),
}
"""Label and colour of each method in the picture, from top to bottom."""


def as_markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """Times, memory and ratios, a line for each case. Columns of bfloat16 chunks and noise are optional."""
    columns = [
        "V",
        "J",
        "d",
        "tokens",
        *METHODS,
        "fused / floor",
        "fused / published",
        "fused / plain",
        "memory: fused",
        "published",
        "plain",
        "tied",
        "fused / published",
        "fused, beyond gradients",
    ]
    has_narrow = any(NARROW in result["seconds"] for result in results)
    if has_narrow:
        columns += [NARROW, NARROW_FLOOR, f"{NARROW} / fused", "/ their floor", f"memory: {NARROW}", "/ fused"]
    has_noise = any(NOISE in result["seconds"] for result in results)
    if has_noise:
        columns += [NOISE, f"fused / {NOISE}", f"memory: {NOISE}"]
    rows = []
    for result in results:
        seconds, peaks = result["seconds"], _peaks(result)
        fused = result["memory_bytes"]["fused"]
        beyond = {} if fused is None else {"fused": fused["peak"] - fused["gradients"]}
        rows.append(
            [
                *(f"{result[name]:,}" for name in SIZES),
                *(_milliseconds(seconds, name) for name in METHODS),
                *(_ratio(seconds, "fused", name, digits=2) for name in ("floor", "published", "plain")),
                *(_mebibytes(peaks, name) for name in ("fused", "published", "plain", "tied")),
                *(_ratio(peaks, "fused", "published", digits=3), _mebibytes(beyond, "fused")),
            ]
        )
        if has_narrow:
            rows[-1] += [
                *(_milliseconds(seconds, name) for name in (NARROW, NARROW_FLOOR)),
                *(_ratio(seconds, NARROW, name, digits=2) for name in ("fused", NARROW_FLOOR)),
                *(_mebibytes(peaks, NARROW), _ratio(peaks, NARROW, "fused", digits=3)),
            ]
        if has_noise:
            rows[-1] += [
                _milliseconds(seconds, NOISE),
                _ratio(seconds, "fused", NOISE, digits=1),
                _mebibytes(peaks, NOISE),
            ]
    return as_table(columns, rows)


def draw(results: Sequence[Mapping[str, Any]], *, hardware: str) -> "Figure":
    """Bars of time and memory by method, for the first mixture, or for the first single softmax if there is none.

    Args:
        results: results of :func:`measure`.
        hardware: the machine, for the title.
    """
    case = next((result for result in results if result["num_experts"] > 1), results[0])
    names = [name for name in BARS if name in case["seconds"]]
    picture = new_picture(inches=(9, 1.3 + 0.42 * len(names)))
    times, memories = picture.subplots(1, 2, sharey=True)
    _draw_bars(times, {name: 1e3 * seconds for name, seconds in case["seconds"].items()}, names, unit="ms")
    _draw_bars(memories, {name: peak / 2**20 for name, peak in _peaks(case).items()}, names, unit="MiB")
    times.set_title("time")
    memories.set_title("peak memory")
    times.set_yticks(range(len(names)), [BARS[name][0] for name in names])
    times.invert_yaxis()
    softmaxes = f"{case['num_experts']} softmaxes" if case["num_experts"] > 1 else "one softmax"
    sizes = f"{case['vocab_size']:,} words, {case['num_tokens']:,} tokens"
    picture.suptitle(f"Loss and gradients of {softmaxes} ({sizes}; {hardware})", fontsize=12)
    return picture


def _draw_bars(axes: "Axes", values: Mapping[str, float], names: Sequence[str], *, unit: str) -> None:
    lengths = [values.get(name, 0.0) for name in names]
    bars = axes.barh(range(len(names)), lengths, height=0.7, color=[BARS[name][1] for name in names])
    axes.bar_label(bars, [f"{values[name]:,.0f} {unit}" if name in values else "" for name in names], padding=3)
    axes.set_xlim(0, 1.25 * max(lengths) or 1)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_xticks([])


def _peaks(result: Mapping[str, Any]) -> Dict[str, int]:
    return {name: value["peak"] for name, value in result["memory_bytes"].items() if value is not None}


def _milliseconds(seconds: Mapping[str, float], name: str) -> Optional[str]:
    return f"{seconds[name] * 1e3:,.0f} ms" if name in seconds else None


def _mebibytes(bytes_of: Mapping[str, int], name: str) -> Optional[str]:
    return f"{bytes_of[name] / 2**20:,.0f} MiB" if name in bytes_of else None


def _ratio(values: Mapping[str, float], name: str, other: str, *, digits: int) -> Optional[str]:
    return f"{values[name] / values[other]:.{digits}f}" if name in values and values.get(other) else None


# The command line.


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "cases",
        nargs="*",
        type=Case.parse,
        metavar="CASE",
        default=[Case.parse(text) for text in DEFAULT_CASES],
        help=f"VOCABULARY,EXPERTS,WIDTH,TOKENS (default: {' '.join(DEFAULT_CASES)})",
    )
    add_cpu(parser)
    parser.add_argument(
        "--dtype",
        choices=["float32", "bfloat16", "float16"],
        default="float32",
        help="of expert hidden states, matrices and gradients (default: %(default)s)",
    )
    parser.add_argument("--threads", type=count, default=torch.get_num_threads(), help="CPU threads (default: all)")
    parser.add_argument("--repetitions", type=count, default=9, help="timed repetitions (default: %(default)s)")
    add_out(parser, help="directory for the report", default="results/benchmarks")


def run(args: argparse.Namespace) -> None:
    """Measure all cases, and write and print the report."""
    torch.set_num_threads(args.threads)
    device, dtype = torch.device(choose_device(args)), getattr(torch, args.dtype)
    results = [
        measure(case, device=device, dtype=dtype, num_repetitions=args.repetitions)
        for case in progress(args.cases, unit="case")
    ]
    hardware = torch.cuda.get_device_name() if device.type == "cuda" else f"{args.threads} CPU threads"
    report = Report(
        text=f"{as_markdown(results)}\n\nForward and backward, {args.dtype} on {device.type}, {args.threads} CPU "
        f"threads, medians of {args.repetitions} interleaved repetitions; memory at the peak beyond the inputs.",
        figures={
            "device": device.type,
            "dtype": args.dtype,
            "num_threads": args.threads,
            "repetitions": args.repetitions,
            "cases": results,
        },
        draw=lambda: draw(results, hardware=f"{hardware}, {args.dtype}"),
    )
    write_report(report, args, "output_layer", device.type, args.dtype)


BENCHMARK = Command(
    add_arguments=_add_arguments,
    run=run,
    description=__doc__ or "",
    example="10000,4,64,100 --repetitions 3 --out benchmarks",
)

if __name__ == "__main__":
    main(BENCHMARK)
