"""Word counts for the output layers that read them."""

from fairseq.tasks import FairseqTask

from fairseq_plugins.data.word_counts import training_word_counts
from fairseq_plugins.output_layers.base import OutputLayer


def provide_word_counts(output_layer: OutputLayer, task: FairseqTask) -> None:
    """Count the words of the task's training text, if ``output_layer`` needs that and the text is there.

    Raises:
        ValueError: if the text does not fit the dictionary or its file cannot be read.
    """
    if output_layer.word_counts is None:
        return
    counts = training_word_counts(task)
    if counts is not None:
        output_layer.word_counts.set(counts)
