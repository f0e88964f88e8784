"""Pictures and tables: learning curves, generalization, attention, surprisal, experts of mixtures."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple

from fairseq_plugins.evaluation.analyses.experts import WordExperts
from fairseq_plugins.evaluation.analyses.layers import LayerLearning
from fairseq_plugins.evaluation.language_model import ScoredLine
from fairseq_plugins.evaluation.raw_text import SideText, Subwords
from fairseq_plugins.evaluation.translation import TranslatedSentence, WordAttention, word_attention
from fairseq_plugins.metrics.corpus import TITLES
from fairseq_plugins.options import UserError
from fairseq_plugins.reports.tables import as_label, as_table, enclose_logarithmically, new_picture, save_picture
from fairseq_plugins.reports.training_log import TrainingLog

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_MARKED = 40
"""A curve with twice as many epochs has a marker at every second one, and so on."""
MOST_INSIDE = 4
"""With more runs, the legend stands beside the curves, because it would hide them."""
LINE_STYLES = ("-", "--", ":", "-.")
"""For the seeds of a system."""
MARKERS = "os^Dv"
"""For lines of equal colour and style. There are four styles and ten colours."""
INCHES_OF_ENTRY = 0.22
"""Height of an entry of a legend."""


def draw_learning_curves(runs: Sequence[Dict[str, Any]]) -> "Figure":
    """Curves of validation perplexity by epoch, and beside them curves of each metric of decoded text.

    Runs of one name share a colour.

    Args:
        runs: ``name``, ``seed``, ``valid_curve``, optional ``train_curve``, which is dotted if there are few runs, and
            optional ``score_curves`` by metric for each run.
    """
    from matplotlib.ticker import MaxNLocator

    styles = _styles(runs)
    scores = [run.get("score_curves", {}) for run in runs]
    metrics = [metric for metric in TITLES if any(metric in curves for curves in scores)]
    are_many = len(runs) > MOST_INSIDE
    height = max(4.2, INCHES_OF_ENTRY * (2 + len(runs)))
    picture = new_picture(inches=(7 * (1 + len(metrics)) + 3.5 * are_many, height))
    panels = picture.subplots(1, 1 + len(metrics), squeeze=False)[0]
    _draw_lines(panels[0], dict(enumerate(run["valid_curve"] for run in runs)), styles)
    train_curves: List[Dict[int, float]] = [{} if are_many else run.get("train_curve", {}) for run in runs]
    for curve, style in zip(train_curves, styles):
        if curve:
            panels[0].plot(list(curve), list(curve.values()), color=style["color"], linestyle=":", linewidth=1)
    title = "Validation perplexity" + (", dotted: training" if any(train_curves) else "")
    panels[0].set(ylabel="perplexity (log scale)", title=title, yscale="log")
    curves = [*(run["valid_curve"] for run in runs), *train_curves]
    enclose_logarithmically(panels[0].yaxis, [ppl for curve in curves for ppl in curve.values()])
    for axes, metric in zip(panels[1:], metrics):
        _draw_lines(axes, {n: curves[metric] for n, curves in enumerate(scores) if metric in curves}, styles)
        axes.set(ylabel=TITLES[metric], title=f"Validation {TITLES[metric]}")
    for axes in panels:
        axes.set(xlabel="epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.grid(alpha=0.3, which="both")
        if not are_many:
            axes.legend()
    if are_many:
        picture.legend(handles=panels[0].lines, loc="outside right upper")
    return picture


def _styles(runs: Sequence[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Label, colour, line style and marker of each run. The name decides the colour, the seed the line style."""
    names = [run["name"] for run in runs]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    styles = []
    for index, (name, run) in enumerate(zip(names, runs)):
        round_of_lines, line = divmod(names[:index].count(name), len(LINE_STYLES))
        label = name if names.count(name) == 1 else f"{name}, seed {run['seed']}"
        marker = MARKERS[(round_of_lines + numbers[name] // 10) % len(MARKERS)]
        colour = f"C{numbers[name]}"
        styles.append(dict(label=as_label(label), color=colour, linestyle=LINE_STYLES[line], marker=marker))
    return styles


def _draw_lines(axes: "Axes", curves: Dict[int, Dict[int, float]], styles: Sequence[Dict[str, Any]]) -> None:
    """Draw the curves of runs, given by their number, in their styles. The legend has the last value of each."""
    for number, curve in curves.items():
        style, every = styles[number], max(1, len(curve) // MOST_MARKED)
        last = f": {curve[max(curve)]:.2f}" if curve else ""
        label = style["label"] + last
        axes.plot(list(curve), list(curve.values()), markersize=4, markevery=every, **{**style, "label": label})


@dataclass(frozen=True, kw_only=True)
class Generalization:
    """Training and validation perplexity of a run by epoch.

    Training perplexity is the mean over the updates of the epoch, with dropout. Validation follows the epoch.
    """

    name: str
    train: Dict[int, float]
    valid: Dict[int, float]

    @property
    def best_epoch(self) -> int:
        """The epoch with the lowest validation perplexity. NaN counts as highest."""
        return min(self.valid, key=lambda epoch: (math.isnan(self.valid[epoch]), self.valid[epoch]))

    def valid_at(self, level: float) -> Optional[float]:
        """Validation perplexity at the point where training perplexity first falls to a level.

        Between two epochs, the logarithms of both are interpolated linearly. None if no two epochs with finite
        perplexities enclose the level.
        """
        points = list(zip(self.train.values(), self.valid.values()))
        for (above, before), (below, after) in zip(points, points[1:]):
            if above >= level >= below and all(map(math.isfinite, (above, before, after))):
                fraction = math.log(above / level) / math.log(above / below) if above > below else 0.0
                return before * (after / before) ** fraction
        return None


def read_generalization(name: str, save_dir: Path) -> Generalization:
    """Read the log of a run. Epochs without both perplexities are left out.

    Raises UserError or OSError if there is no log, or no epoch with both.
    """
    log = TrainingLog(save_dir)
    train, valid = log.train_curve, log.valid_curve
    if not train:
        raise UserError(f"{log.path} holds no training perplexity: the criterion logs none, or no epoch was finished")
    epochs = [epoch for epoch in train if epoch in valid]
    if not epochs:
        raise UserError(f"{log.path} holds no epoch that was finished and validated")
    return Generalization(
        name=name, train={epoch: train[epoch] for epoch in epochs}, valid={epoch: valid[epoch] for epoch in epochs}
    )


def generalization_table(runs: Sequence[Generalization], *, levels: Sequence[float]) -> str:
    """A line for each run: its best epoch, and validation perplexities at equal training perplexities."""
    columns = ["model", "best epoch", "train", "valid", *(f"valid at train {level:g}" for level in levels)]
    rows: List[List[object]] = []
    for run in runs:
        best, at = run.best_epoch, [run.valid_at(level) for level in levels]
        cells = [None if valid is None else f"{valid:.2f}" for valid in at]
        rows.append([run.name, best, f"{run.train[best]:.2f}", f"{run.valid[best]:.2f}", *cells])
    return as_table(columns, rows)


def generalization_record(runs: Sequence[Generalization], *, levels: Sequence[float]) -> List[Dict[str, Any]]:
    """Curves and table of the runs, for JSON."""
    return [
        {
            **asdict(run),
            "best_epoch": run.best_epoch,
            "valid_at": [{"train": level, "valid": run.valid_at(level)} for level in levels],
        }
        for run in runs
    ]


def draw_generalization(runs: Sequence[Generalization]) -> "Figure":
    """Curves of validation against training perplexity, a point for each epoch. Training moves to the right."""
    picture = new_picture()
    axes = picture.subplots()
    for run in runs:
        marker = "o" if len(run.train) <= MOST_MARKED else None
        axes.plot(
            list(run.train.values()), list(run.valid.values()), marker=marker, markersize=4, label=as_label(run.name)
        )
    axes.set(
        xlabel="training perplexity (log scale)", ylabel="validation perplexity (log scale)", xscale="log", yscale="log"
    )
    enclose_logarithmically(axes.xaxis, [value for run in runs for value in run.train.values()])
    enclose_logarithmically(axes.yaxis, [value for run in runs for value in run.valid.values()])
    axes.invert_xaxis()
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    return picture


INCHES_A_WORD = 0.45
INCHES_OF_LABELS = 2.0
MOST_WORDS = 100
"""Words of a sentence that are drawn at most."""


def draw_attention_map(attention: WordAttention) -> "Figure":
    """Attention of the first words of a translation (rows) on the first words of the source (columns)."""
    source, target = attention.source[:MOST_WORDS], attention.target[:MOST_WORDS]
    shape = len(source), len(target)
    width, height = (INCHES_OF_LABELS + INCHES_A_WORD * words for words in shape)
    picture = new_picture(inches=(width, height))
    axes = picture.subplots()
    image = axes.imshow(
        attention.weights[:MOST_WORDS, :MOST_WORDS].numpy(), cmap="Blues", vmin=0, vmax=1, aspect="equal"
    )
    axes.set_xticks(range(shape[0]), source, rotation=45, ha="left", rotation_mode="anchor", parse_math=False)
    axes.set_yticks(range(shape[1]), target, parse_math=False)
    axes.set(xlabel="source", ylabel="translation")
    axes.xaxis.set_label_position("top")
    axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    axes.set_xticks([word - 0.5 for word in range(1, shape[0])], minor=True)
    axes.set_yticks([word - 0.5 for word in range(1, shape[1])], minor=True)
    axes.grid(which="minor", color="0.9")
    axes.tick_params(which="minor", length=0)
    picture.colorbar(image, ax=axes, label="attention", shrink=0.7)
    return picture


def save_attention_map(sentence: TranslatedSentence, subwords: Subwords, path: Path) -> None:
    """Save the picture of a sentence's attention between words, in the format of the path's suffix.

    Raises UserError if the sentence has no attention; the message names the path.
    """
    try:
        attention = word_attention(sentence, subwords)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error
    save_picture(draw_attention_map(attention), path)


LONGEST_WORD = 20
"""Letters of a word that are drawn at most."""


def word_surprisals(line: ScoredLine, text: SideText) -> List[Tuple[str, float, bool]]:
    """Surprisal of the words of a line. The end mark is the last.

    Returns:
        each word, joined from its subwords, the sum of their surprisal in bits, and whether the vocabulary lacks one.
    """
    *pieces, end = line.tokens
    words: List[Tuple[str, float, bool]] = []
    start, bits = 0, line.bits
    for word in [*text.group(pieces), [end]]:
        until = start + len(word)
        words.append(("".join(word), math.fsum(bits[start:until]), any(line.unknown[start:until])))
        start = until
    return words


def draw_surprisal(line: ScoredLine, text: SideText) -> "Figure":
    """A bar for each of the first words of a line. Unknown words have another colour."""
    words, bits, unknown = zip(*word_surprisals(line, text)[:MOST_WORDS])
    picture = new_picture(inches=(max(4.0, 1.5 + 0.3 * len(words)), 3.6))
    axes = picture.subplots()
    colours = ["tab:orange" if lacks else "tab:blue" for lacks in unknown]
    axes.bar(range(len(words)), bits, color=colours)
    axes.set_xticks(range(len(words)), [as_label(word[:LONGEST_WORD]) for word in words], rotation=60, ha="right")
    axes.set(ylabel="surprisal, bits", xlim=(-0.6, len(words) - 0.4))
    axes.spines[["top", "right"]].set_visible(False)
    if any(unknown):
        axes.set_title("orange: not in the vocabulary", fontsize="small", loc="right")
    return picture


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
    """Names of experts by the layer that they read and their number among those that read it: "layer 2, 1"."""
    numbers = [sum(other == layer for other in layers[: number + 1]) for number, layer in enumerate(layers)]
    return [f"{layer_name(layer)}, {number}" for layer, number in zip(layers, numbers)]


def layer_name(layer: int) -> str:
    """Name of a layer. Layer 0 is the embedding."""
    return f"layer {layer}" if layer else "embedding"


History = Mapping[int, LayerLearning]
"""Use and gradients of the layers that a mixture reads, by the number of updates of a run."""

MEASURES = {"shares": "share of the words", "gradients": "gradient by word, nats"}
"""Titles of the attributes of :class:`LayerLearning`."""


def history_table(runs: Mapping[str, History]) -> str:
    """A line for each checkpoint, with shares and then gradients of the layers."""
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
    return as_table(["model", "updates", *measured], rows)


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
