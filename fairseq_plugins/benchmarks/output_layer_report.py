"""The figures of :mod:`~fairseq_plugins.benchmarks.output_layer` as a table and as a picture."""

from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Sequence

from fairseq_plugins.benchmarks.output_layer import NOISE
from fairseq_plugins.reports.pictures import new_picture
from fairseq_plugins.reports.tables import as_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METHODS = ("fused", "published", "plain", "floor", "tied", "torch")
NARROW, NARROW_FLOOR = "fused, bfloat16 chunks", "floor, bfloat16 chunks"
SIZES = ("vocab_size", "num_experts", "width", "num_tokens")
BARS = {
    "published": ("as the papers' programs do it", "#b0b0b0"),
    "plain": ("fastest plain PyTorch", "#7f7f7f"),
    "torch": ("PyTorch's chunked loss", "#7f7f7f"),
    "fused": ("this package", "#d1495b"),
    NARROW: ("this package, bfloat16 chunks", "#a02c4a"),
    "floor": ("its matrix products alone (time only)", "#edae49"),
    NARROW_FLOOR: ("those in bfloat16 (time only)", "#c4822b"),
    "tied": ("one softmax instead", "#30638e"),
}
"""Words and colour of each method in the picture, from top to bottom."""


def as_markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """Times, memory, and the ratios, a case a line; of chunks in bfloat16 and of noise where they were measured."""
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
    """Time and memory of each method as bars, a group for each case of several softmaxes, or of one where that is all.

    The floors' memory is left out: they hold whole gradients, which the methods whose products they repeat need not.

    Args:
        results: of :func:`~fairseq_plugins.benchmarks.output_layer.measure`.
        hardware: where they were measured, for the title.
    """
    mixtures = [result for result in results if result["num_experts"] > 1]
    shown = mixtures or results
    names = [name for name in BARS if any(name in result["seconds"] for result in shown)]
    picture = new_picture(inches=(9, 1.4 + 0.19 * (len(names) + 1.2) * len(shown)))
    times, memories = picture.subplots(1, 2, sharey=True)
    _draw_bars(times, [result["seconds"] for result in shown], names, unit="ms", scale=1e3)
    floors = ("floor", NARROW_FLOOR)
    peaks = [{name: peak for name, peak in _peaks(result).items() if name not in floors} for result in shown]
    _draw_bars(memories, peaks, names, unit="MiB", scale=2**-20)
    times.set_title("time")
    memories.set_title("memory")
    centre = (len(names) - 1) / 2
    times.set_yticks([_top(case, names) + centre for case in range(len(shown))], [_describe(case) for case in shown])
    times.invert_yaxis()
    numbers = sorted({result["num_experts"] for result in shown})
    softmaxes = f"a mixture of {' or '.join(map(str, numbers))} softmaxes" if mixtures else "one softmax"
    picture.suptitle(f"One training step through {softmaxes}: the loss and its gradients\n({hardware})", fontsize=12)
    picture.legend(*times.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return picture


def _draw_bars(
    axes: "Axes", cases: Sequence[Mapping[str, float]], names: Sequence[str], *, unit: str, scale: float
) -> None:
    longest = max((value for values in cases for value in values.values()), default=0.0)
    for place, name in enumerate(names):
        known = [(case, values[name]) for case, values in enumerate(cases) if name in values]
        if not known:
            continue
        lengths = [value * scale for _, value in known]
        label, colour = BARS[name]
        places = [_top(case, names) + place for case, _ in known]
        bars = axes.barh(places, lengths, height=0.9, color=colour, label=label)
        axes.bar_label(bars, [f"{length:,.0f} {unit}" for length in lengths], padding=3, fontsize=8)
    axes.set_xlim(0, 1.2 * longest * scale or 1)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_xticks([])


def _top(case: int, names: Sequence[str]) -> float:
    """Place of the first bar of a case."""
    return case * (len(names) + 1.2)


def _describe(case: Mapping[str, Any]) -> str:
    return f"{case['vocab_size']:,} words,\n{case['num_tokens']:,} tokens"


def _peaks(result: Mapping[str, Any]) -> Dict[str, int]:
    return {name: value["peak"] for name, value in result["memory_bytes"].items() if value is not None}


def _milliseconds(seconds: Mapping[str, float], name: str) -> Optional[str]:
    return f"{seconds[name] * 1e3:,.0f} ms" if name in seconds else None


def _mebibytes(bytes_of: Mapping[str, int], name: str) -> Optional[str]:
    return f"{bytes_of[name] / 2**20:,.0f} MiB" if name in bytes_of else None


def _ratio(values: Mapping[str, float], name: str, other: str, *, digits: int) -> Optional[str]:
    return f"{values[name] / values[other]:.{digits}f}" if name in values and values.get(other) else None
