"""``fairseq_plugins.load``: a trained language model or translator; the task in the checkpoint tells which."""

from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Optional, Sequence, Union

import torch
from fairseq.tasks import TASK_REGISTRY
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.translation import TranslationTask

from fairseq_plugins.evaluation.checkpoints import corpus_of, trained_task
from fairseq_plugins.evaluation.language_model import TrainedLanguageModel, load_trained_language_model
from fairseq_plugins.evaluation.raw_text import TEXT_KINDS, TextKind
from fairseq_plugins.evaluation.translation import Translator, load_translator
from fairseq_plugins.files import checkpoints_of
from fairseq_plugins.options import UserError, check_at_least_one, check_choice

AnyPath = Union[str, Path]


@contextmanager
def _built_in_float32() -> Iterator[None]:
    """Build models in float32, as fairseq does, whatever default dtype the user has set in torch."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(default)


@_built_in_float32()
@torch.random.fork_rng(devices=[])  # building a model draws initial weights, which must not move the user's generator
def load_trained(
    path: Union[AnyPath, Sequence[AnyPath]],
    data: Optional[AnyPath] = None,
    *,
    device: str = "cpu",
    text: TextKind = "raw",
    precision: str = "float32",
    max_tokens: int = 4096,
) -> Union[TrainedLanguageModel, Translator]:
    """See :func:`fairseq_plugins.load`."""
    given = [path] if isinstance(path, (str, Path)) else path
    paths = [found for one in given for found in checkpoints_of(Path(one))]
    if not paths:
        raise UserError("give a checkpoint")
    check_choice(text, TEXT_KINDS, flag="text")
    check_at_least_one(max_tokens, flag="max_tokens")
    _check_device(device)
    config = trained_task(paths[0])
    folder, task = corpus_of(paths[0], config, data), TASK_REGISTRY[config._name]
    if issubclass(task, TranslationTask):
        if text != "raw":
            raise UserError(f"text {text}: a translator reads raw text")
        return load_translator(paths, folder, device=device, precision=precision)
    if not issubclass(task, LanguageModelingTask):
        raise UserError(f"{paths[0]} was trained for --task {config._name}, neither language modelling nor translation")
    return load_trained_language_model(
        paths, folder, text=text, device=device, precision=precision, max_tokens=max_tokens
    )


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device {device}: there is none here; give 'cpu', or 'cuda' where torch sees a GPU") from error
