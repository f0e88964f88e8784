"""Word counts of a task's training text for the output layers that read them."""

from fairseq_plugins.data.text_task import TextTask
from fairseq_plugins.data.word_counts import training_counts
from fairseq_plugins.output_layers.base import OutputLayer


def provide_word_counts(output_layer: OutputLayer, task: TextTask) -> None:
    """Count the target words of the task's training text, if ``output_layer`` needs that and the text is there.

    Several data directories are one text. Errors in the text are raised when the counts are first read.
    """
    if output_layer.word_counts is None:
        return
    try:
        counts = training_counts(task)
    except ValueError as error:
        output_layer.word_counts.refuse(error)
        return
    if counts is not None:
        output_layer.word_counts.set(counts)
