"""Which experts of mixtures served a sentence, as a picture."""

from typing import TYPE_CHECKING, List, Sequence, Tuple

from fairseq_plugins.evaluation.analyses.expert_use import WordExperts
from fairseq_plugins.reports.pictures import as_label, new_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INCHES_A_WORD, INCHES_AN_EXPERT = 0.42, 0.24
INCHES_OF_LABELS = 3.2, 1.4


def draw_expert_map(sentences: Sequence[Tuple[str, WordExperts]]) -> "Figure":
    """A panel for each named model: a row for each expert and the layer it reads, a column for each word.

    Dark is much prior before the word.
    """
    num_words = max(len(experts.words) for _, experts in sentences)
    heights = [INCHES_OF_LABELS[1] + INCHES_AN_EXPERT * len(experts.layers) for _, experts in sentences]
    picture = new_picture(inches=(INCHES_OF_LABELS[0] + INCHES_A_WORD * num_words, sum(heights)))
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
