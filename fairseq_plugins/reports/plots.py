"""Learning curves as a picture."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple

from fairseq_plugins.evaluation.analyses.experts import WordExperts
from fairseq_plugins.evaluation.analyses.layers import LayerLearning
from fairseq_plugins.evaluation.raw_text import SideText, TextPreparation
from fairseq_plugins.evaluation.text_scorer import ScoredLine
from fairseq_plugins.evaluation.translation import TranslatedSentence, WordAttention, word_attention
from fairseq_plugins.metrics.corpus import TITLES
from fairseq_plugins.reports.tables import as_label, as_table, new_picture, save_picture, write_plain_numbers
from fairseq_plugins.reports.training_log import find_log, read_train_curve, read_valid_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MOST_MARKED = 40
"""Epochs of a curve whose points are marked."""
MOST_INSIDE = 4
"""Runs whose legend hides nothing of their curves; that of more stands beside them."""
LINE_STYLES = ("-", "--", ":", "-.")
"""Of the seeds of a system."""
MARKERS = "os^Dv"
"""Of lines of one colour and style: there are four styles and ten colours."""
INCHES_OF_ENTRY = 0.22
"""Height of a line of a legend."""


def draw_learning_curves(runs: Sequence[Dict[str, Any]]) -> "Figure":
    """Validation perplexity by epoch, one line a run, and beside it each metric by which decoded text was scored.

    Runs of one name have one colour.

    Args:
        runs: each with ``name``, ``seed`` and ``valid_curve``, and with ``score_curves`` by metric where there are any.
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
    panels[0].set(ylabel="validation perplexity", yscale="log")
    write_plain_numbers(panels[0].yaxis)
    for axes, metric in zip(panels[1:], metrics):
        _draw_lines(axes, {n: curves[metric] for n, curves in enumerate(scores) if metric in curves}, styles)
        axes.set(ylabel=f"validation {TITLES[metric]}")
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
    """Label, colour, line and marker of each run: the colour by its name, the line by its place among those of it."""
    names = [run["name"] for run in runs]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    styles = []
    for place, (name, run) in enumerate(zip(names, runs)):
        round_of_lines, line = divmod(names[:place].count(name), len(LINE_STYLES))
        label = name if names.count(name) == 1 else f"{name}, seed {run['seed']}"
        marker = MARKERS[(round_of_lines + numbers[name] // 10) % len(MARKERS)]
        colour = f"C{numbers[name]}"
        styles.append(dict(label=as_label(label), color=colour, linestyle=LINE_STYLES[line], marker=marker))
    return styles


def _draw_lines(axes: "Axes", curves: Dict[int, Dict[int, float]], styles: Sequence[Dict[str, Any]]) -> None:
    """Draw the curves of runs by their number, each in the run's style."""
    for number, curve in curves.items():
        style = styles[number] if len(curve) <= MOST_MARKED else {**styles[number], "marker": None}
        axes.plot(list(curve), list(curve.values()), markersize=4, **style)


# How well trainings predict the validation set for what they know of the training set, as a table and as a picture.


@dataclass(frozen=True, kw_only=True)
class Generalization:
    """Perplexities of a training, by epoch.

    Attributes:
        name: how tables name it.
        train: of the training set, the mean over the updates of the epoch, with dropout.
        valid: of the validation set, after the epoch.
    """

    name: str
    train: Dict[int, float]
    valid: Dict[int, float]

    @property
    def best_epoch(self) -> int:
        """The epoch of the lowest perplexity of the validation set; one without a number is none."""
        return min(self.valid, key=lambda epoch: (math.isnan(self.valid[epoch]), self.valid[epoch]))

    def valid_at(self, level: float) -> Optional[float]:
        """Perplexity of the validation set where that of the training set first falls to a level.

        Between two epochs the logarithm of one is taken as linear in that of the other; None where no two epochs with
        finite perplexities enclose it.
        """
        points = list(zip(self.train.values(), self.valid.values()))
        for (above, before), (below, after) in zip(points, points[1:]):
            if above >= level >= below and all(map(math.isfinite, (above, before, after))):
                share = math.log(above / level) / math.log(above / below) if above > below else 0.0
                return before * (after / before) ** share
        return None


def read_generalization(name: str, save_dir: Path) -> Generalization:
    """Read the log of a training; epochs that lack one of both perplexities are left out.

    Args:
        name: how tables name it.
        save_dir: where ``train.log`` is.

    Raises:
        ValueError, OSError: if there is no log, or no epoch with both.
    """
    log = find_log(save_dir)
    train, valid = read_train_curve(log), read_valid_curve(log)
    epochs = [epoch for epoch in train if epoch in valid]
    if not epochs:
        raise ValueError(f"{log} holds no epoch that was finished and validated")
    return Generalization(
        name=name, train={epoch: train[epoch] for epoch in epochs}, valid={epoch: valid[epoch] for epoch in epochs}
    )


def generalization_table(runs: Sequence[Generalization], *, levels: Sequence[float]) -> str:
    """A training a line: its best epoch, and the validation set at equal perplexities of the training set."""
    columns = ["model", "best epoch", "train", "valid", *(f"valid at train {level:g}" for level in levels)]
    rows: List[List[object]] = []
    for run in runs:
        best, at = run.best_epoch, [run.valid_at(level) for level in levels]
        cells = [None if valid is None else f"{valid:.2f}" for valid in at]
        rows.append([run.name, best, f"{run.train[best]:.2f}", f"{run.valid[best]:.2f}", *cells])
    return as_table(columns, rows)


def generalization_record(runs: Sequence[Generalization], *, levels: Sequence[float]) -> List[Dict[str, Any]]:
    """The curves and what the table has, with full precision."""
    return [
        {
            **asdict(run),
            "best_epoch": run.best_epoch,
            "valid_at": [{"train": level, "valid": run.valid_at(level)} for level in levels],
        }
        for run in runs
    ]


def draw_generalization(runs: Sequence[Generalization]) -> "Figure":
    """Validation against training perplexity, a point an epoch and a line a training, which goes on to the right."""
    picture = new_picture()
    axes = picture.subplots()
    for run in runs:
        marker = "o" if len(run.train) <= MOST_MARKED else None
        axes.plot(
            list(run.train.values()), list(run.valid.values()), marker=marker, markersize=4, label=as_label(run.name)
        )
    axes.set(xlabel="training perplexity", ylabel="validation perplexity", xscale="log", yscale="log")
    axes.invert_xaxis()
    for axis in (axes.xaxis, axes.yaxis):
        write_plain_numbers(axis)
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    return picture


# The attention of a translation as a picture.


INCHES_A_WORD = 0.45
INCHES_OF_LABELS = 2.0
MOST_WORDS = 100
"""Words that are drawn of a longer sentence."""


def draw_attention_map(attention: WordAttention) -> "Figure":
    """A row for each of the first words of the translation, a column for each of the source; dark is much attention."""
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


def save_attention_map(sentence: TranslatedSentence, preparation: TextPreparation, path: Path) -> None:
    """Write the picture of a sentence's attention between words, in the format of the path's suffix.

    Raises:
        ValueError: if the sentence has no attention; the message names the path.
    """
    try:
        attention = word_attention(sentence, preparation.subwords)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    save_picture(draw_attention_map(attention), path)


# The surprisal of the words of a line as a picture.


SURPRISAL_INCHES_A_WORD = 0.3
"""Words that are drawn of a longer line."""
LONGEST_WORD = 20
"""Letters that are drawn of a longer word."""


@dataclass(frozen=True, kw_only=True)
class WordSurprisal:
    """Surprisal of a word.

    Attributes:
        word: its pieces together.
        bits: the sum of its pieces' surprisal.
        unknown: whether the vocabulary lacks one of them.
    """

    word: str
    bits: float
    unknown: bool


def word_surprisals(line: ScoredLine, text: SideText) -> List[WordSurprisal]:
    """Surprisal of the words of a line, the end mark the last."""
    *pieces, end = line.tokens
    words: List[WordSurprisal] = []
    place, bits = 0, line.bits
    for word in [*text.group(pieces), [end]]:
        until = place + len(word)
        words.append(
            WordSurprisal(word="".join(word), bits=math.fsum(bits[place:until]), unknown=any(line.unknown[place:until]))
        )
        place = until
    return words


def draw_surprisal(line: ScoredLine, text: SideText) -> "Figure":
    """A bar for each of the first words of a line, unknown words in another colour."""
    words = word_surprisals(line, text)[:MOST_WORDS]
    picture = new_picture(inches=(max(4.0, 1.5 + SURPRISAL_INCHES_A_WORD * len(words)), 3.6))
    axes = picture.subplots()
    colours = ["tab:orange" if word.unknown else "tab:blue" for word in words]
    axes.bar(range(len(words)), [word.bits for word in words], color=colours)
    axes.set_xticks(range(len(words)), [as_label(word.word[:LONGEST_WORD]) for word in words], rotation=60, ha="right")
    axes.set(ylabel="surprisal, bits", xlim=(-0.6, len(words) - 0.4))
    axes.spines[["top", "right"]].set_visible(False)
    if any(word.unknown for word in words):
        axes.set_title("orange: not in the vocabulary", fontsize="small", loc="right")
    return picture


# Which experts of mixtures served a sentence, as a picture.


EXPERT_MAP_INCHES_A_WORD, INCHES_AN_EXPERT = 0.42, 0.24
EXPERT_MAP_INCHES_OF_LABELS = 3.2, 1.4


def draw_expert_map(sentences: Sequence[Tuple[str, WordExperts]]) -> "Figure":
    """A panel for each named model: a row for each expert and the layer it reads, a column for each word.

    Dark is much prior before the word.
    """
    num_words = max(len(experts.words) for _, experts in sentences)
    heights = [EXPERT_MAP_INCHES_OF_LABELS[1] + INCHES_AN_EXPERT * len(experts.layers) for _, experts in sentences]
    picture = new_picture(inches=(EXPERT_MAP_INCHES_OF_LABELS[0] + EXPERT_MAP_INCHES_A_WORD * num_words, sum(heights)))
    all_axes = picture.subplots(len(sentences), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (name, experts) in zip(all_axes, sentences):
        image = axes.imshow(experts.weights.t().numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
        words = dict(labels=experts.words, rotation=45, ha="right", rotation_mode="anchor", parse_math=False)
        axes.set_xticks(range(len(experts.words)), **words)
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
    """Experts by the layer that they read and their place among those that read it: "layer 2, 1"."""
    places = [sum(other == layer for other in layers[: number + 1]) for number, layer in enumerate(layers)]
    return [f"{layer_name(layer)}, {place}" for layer, place in zip(layers, places)]


def layer_name(layer: int) -> str:
    """What is read: the embedding or a layer above it."""
    return f"layer {layer}" if layer else "embedding"


# What the layers below a mixture are read for and taught as a training goes on, as a table and as a picture.


History = Mapping[int, LayerLearning]
"""Of a training, by the number of its updates."""

MEASURES = {"shares": "share of the words", "gradients": "gradient by word, nats"}
"""Attributes of :class:`LayerLearning`, and what they are called."""


def history_table(runs: Mapping[str, History]) -> str:
    """A checkpoint a line; shares first, then gradients."""
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
    """A column for each training; above the layers' shares of the words, below the gradients they get."""
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
    rows[0, 0].legend()
    return picture


def read_layers(runs: Mapping[str, History]) -> List[int]:
    """The layers that some expert of some training reads, and the last."""
    found = set()
    for history in runs.values():
        for one in history.values():
            found.update(n for n, share in enumerate(one.shares) if share > 0)
            found.add(len(one.shares) - 1)
    return sorted(found)
