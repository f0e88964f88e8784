"""The precision in which trained models compute scores and search."""

from contextlib import contextmanager
from typing import Iterator, List, Sequence, TypeVar

from fairseq.models import BaseFairseqModel

from fairseq_plugins.flags.values import check_choice
from fairseq_plugins.output_layers.output_precision import OUTPUT_PRECISIONS, OutputPrecision

Model = TypeVar("Model", bound=BaseFairseqModel)


def prepare_to_score(models: Sequence[Model], *, device: str, precision: str) -> List[Model]:
    """Move models to a device, where their output layers compute scores and search in a precision.

    Args:
        models: loaded ones.
        device: such as "cpu"; whether it has the precision is asked of it alone.
        precision: a value of ``--output-precision``.

    Raises:
        ValueError: if there is no such value, or the device or a model has no such products.
    """
    check_choice(precision, OUTPUT_PRECISIONS, flag="--output-precision")
    if precision == "bfloat16" and not all(_output_precisions([model]) for model in models):
        raise ValueError(
            f"--output-precision {precision}: a model's output layer computes in no other precision than the model's; "
            "leave it out"
        )
    moved = [model.to(device) for model in models]
    for part in _output_precisions(moved):
        part.score_in(precision)
    return moved


@contextmanager
def scores_in_float32(models: Sequence[BaseFairseqModel]) -> Iterator[None]:
    """The models' output layers compute scores in float32 in the block, whatever they were asked for before."""
    parts = _output_precisions(models)
    before = [part.scores_in for part in parts]
    try:
        for part in parts:
            part.score_in("float32")
        yield
    finally:
        for part, name in zip(parts, before):
            part.score_in(name)


def _output_precisions(models: Sequence[BaseFairseqModel]) -> List[OutputPrecision]:
    return [part for model in models for part in model.modules() if isinstance(part, OutputPrecision)]
