"""Tables and pictures of the experts of mixtures."""

import math
from typing import TYPE_CHECKING, Dict, List, Mapping, Sequence, Tuple

from fairseq_plugins.evaluation.analyses.experts import ExpertUse, WordExperts
from fairseq_plugins.evaluation.analyses.layers import LayerLearning
from fairseq_plugins.reports.pictures import as_label, new_picture
from fairseq_plugins.reports.report import Report
from fairseq_plugins.reports.sentences import MOST_WORDS
from fairseq_plugins.reports.tables import as_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def use_report(uses: Mapping[str, ExpertUse], *, paths: Mapping[str, str], split: str) -> Report:
    """A table of the balance of the models, and a table of experts for each model, on a ``split``."""
    figures = [
        {
            "name": name,
            "path": paths[name],
            "split": split,
            "words": use.num_words,
            "layers": use.layers,
            "shares": use.shares,
            "entropies": use.entropies,
            "uniform_entropy": math.log(use.vocab_size),
            "balance": use.balance,
            "sample_balance": use.sample_balance,
        }
        for name, use in uses.items()
    ]
    rows = [
        [name, f"{use.num_words:,}", len(use.layers), f"{use.balance:.3f}", f"{use.sample_balance:.3f}"]
        for name, use in uses.items()
    ]
    columns = ["model", f"words of {split}", "experts", "sqrt(beta), population", "sqrt(beta), sample"]
    tables = [as_table(columns, rows)]
    for name, use in uses.items():
        experts = [
            [expert, f"{share:.2%}", f"{entropy:.2f}"]
            for expert, share, entropy in zip(expert_names(use.layers), use.shares, use.entropies)
        ]
        uniform = f"entropy, of {math.log(use.vocab_size):.2f} nats"
        tables.append(as_table([name, "share of the words", uniform], experts))
    return Report({"models": figures}, "\n\n".join(tables))


def draw_expert_map(sentences: Sequence[Tuple[str, WordExperts]]) -> "Figure":
    """Prior of the experts before each of the first words.

    There is a panel for each model, a row for each expert and a column for each word.
    """
    num_words = min(MOST_WORDS, max(len(experts.words) for _, experts in sentences))
    heights = [1.4 + 0.24 * len(experts.layers) for _, experts in sentences]  # inches
    picture = new_picture(inches=(3.2 + 0.42 * num_words, sum(heights)))
    all_axes = picture.subplots(len(sentences), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (name, experts) in zip(all_axes, sentences):
        image = axes.imshow(experts.weights[:MOST_WORDS].t().numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
        labels = experts.words[:MOST_WORDS]
        axes.set_xticks(range(len(labels)), labels, rotation=45, ha="right", rotation_mode="anchor", parse_math=False)
        axes.set_yticks(range(len(experts.layers)), expert_names(experts.layers))
        axes.set_title(as_label(name), loc="left", fontsize="small")
        axes.set_ylabel("expert")
        for row, (layer, above) in enumerate(zip(experts.layers[1:], experts.layers)):
            if layer != above:
                axes.axhline(row + 0.5, color="black", linewidth=0.8)
        axes.tick_params(length=0)
    picture.colorbar(image, ax=list(all_axes), label="prior", shrink=0.7)
    return picture


def expert_names(layers: Sequence[int]) -> List[str]:
    """Names of experts by the layer that they read, and a number within that layer: "layer 2, 1"."""
    numbers = [sum(other == layer for other in layers[: number + 1]) for number, layer in enumerate(layers)]
    return [f"{layer_name(layer)}, {number}" for layer, number in zip(layers, numbers)]


def layer_name(layer: int) -> str:
    """Name of a layer. Layer 0 is the embedding."""
    return f"layer {layer}" if layer else "embedding"


History = Mapping[int, LayerLearning]
"""Use and gradients of the layers that a mixture reads, by the number of updates of a run."""

MEASURES = {"shares": "share of the words", "gradients": "gradient by word, nats"}
"""Titles of the attributes of :class:`LayerLearning`."""


def history_report(runs: Mapping[str, History], *, split: str) -> Report:
    """A line for each checkpoint, with shares and then gradients of the layers, on a ``split``."""
    figures = [
        {
            "name": name,
            "split": split,
            "checkpoints": [
                {"updates": at, "words": one.num_words, "shares": one.shares, "gradients": one.gradients}
                for at, one in history.items()
            ],
        }
        for name, history in runs.items()
    ]
    layers = read_layers(runs)
    measured = [f"{measure}, {layer_name(n)}" for measure in ("share", "gradient") for n in layers]
    rows = [
        [
            name,
            f"{num_updates:,}",
            *(f"{one.shares[n]:.1%}" if n < len(one.shares) else None for n in layers),
            *(f"{one.gradients[n]:.4f}" if n < len(one.gradients) else None for n in layers),
        ]
        for name, history in runs.items()
        for num_updates, one in history.items()
    ]
    return Report({"runs": figures}, as_table(["model", "updates", *measured], rows), lambda: draw_history(runs))


def draw_history(runs: Mapping[str, History]) -> "Figure":
    """A column for each run: shares of the layers above, their gradients below."""
    picture = new_picture(inches=(4.2 * len(runs) + 0.6, 6))
    rows = picture.subplots(len(MEASURES), len(runs), squeeze=False, sharex="col", sharey="row")
    for (measure, title), panels in zip(MEASURES.items(), rows):
        for axes, history in zip(panels, runs.values()):
            for n in read_layers(runs):
                curve: Dict[int, List[float]] = {at: getattr(one, measure) for at, one in history.items()}
                points = [(at, values[n]) for at, values in curve.items() if n < len(values)]
                axes.plot(*zip(*points), marker=".", color=f"C{n}", label=layer_name(n))
            axes.grid(alpha=0.3)
        panels[0].set_ylabel(title)
    for axes, name in zip(rows[0], runs):
        axes.set_title(as_label(name), loc="left", fontsize="small")
    for axes in rows[-1]:
        axes.set_xlabel("updates")
    lines = {line.get_label(): line for axes in rows[0] for line in axes.lines if line.get_xdata().size}
    rows[0, 0].legend(handles=[lines[label] for label in map(layer_name, read_layers(runs)) if label in lines])
    return picture


def read_layers(runs: Mapping[str, History]) -> List[int]:
    """The layers that an expert of a run reads, and the last layer."""
    found = set()
    for history in runs.values():
        for one in history.values():
            found.update(n for n, share in enumerate(one.shares) if share > 0)
            found.add(len(one.shares) - 1)
    return sorted(found)
