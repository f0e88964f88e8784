"""Trained models as Python objects that take raw text and give raw text: what ``fairseq_plugins.load`` returns."""

import math
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Iterator, List, Optional, Sequence, Union

import torch
from fairseq.tasks import TASK_REGISTRY
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.translation import TranslationTask

from fairseq_plugins.evaluation.checkpoints import check_export, corpus_of, load_language_models, trained_task
from fairseq_plugins.evaluation.generation import Continuation, Sampling, Stop, TextGenerator, UnknownWords
from fairseq_plugins.evaluation.raw_text import TEXT_KINDS, TextKind, checked_line, checked_lines, load_side_text
from fairseq_plugins.evaluation.scoring import exponential, prepare_to_score
from fairseq_plugins.evaluation.text_scorer import Context, ScoredLine, TextScorer
from fairseq_plugins.evaluation.translation import Translator, load_translator
from fairseq_plugins.files import checkpoints_of
from fairseq_plugins.models.checkpoints import check_checkpoints
from fairseq_plugins.options import UserError, check_at_least_one, check_choice

AnyPath = Union[str, Path]


class TrainedLanguageModel(TextScorer):
    """A language model, or an ensemble. Several threads can use it at the same time."""

    def score(self, lines: Sequence[str], *, context: Context = "line") -> List[ScoredLine]:
        """Log-probabilities of each line, in the order of the lines.

        Args:
            lines: of text.
            context: see :meth:`~fairseq_plugins.evaluation.text_scorer.TextScorer.score_stream`.

        Raises:
            UserError: if there is no such context, or an NLL is not finite.
        """
        return super().score(checked_lines(lines), context=context)

    def perplexity(self, text: Union[str, Sequence[str]], *, context: Context = "document") -> float:
        """Perplexity of a text, end marks of its lines included.

        Args:
            text: a text of several lines, or its lines.
            context: whether state is carried through the text or each line is read alone; see :meth:`score`.

        Raises:
            UserError: as :meth:`score`, or if there is no line.
        """
        if isinstance(text, str):
            text = text.removesuffix("\n").split("\n") if text else []
        lines = checked_lines(text)
        log_probs = [log_prob for line in self.score_stream(lines, context=context) for log_prob in line.log_probs]
        if not log_probs:
            raise UserError("a text without a line has no perplexity")
        return exponential(-math.fsum(log_probs) / len(log_probs))

    def sample(self, prefix: str = "", **options: Any) -> str:
        """One text that begins with the prefix; for the options see :meth:`continuations`."""
        return self.continuations(prefix, **options)[0].text

    def continuations(
        self,
        prefix: str = "",
        *,
        num: int = 1,
        seed: int = 1,
        temperature: float = 1.0,
        top_k: Optional[int] = None,
        top_p: Optional[float] = None,
        beam: Optional[int] = None,
        after: Sequence[str] = (),
        max_length: int = 100,
        stop: Stop = "end",
        unknown: UnknownWords = "allowed",
    ) -> List[Continuation]:
        """Texts that begin with the prefix, sampled or found by beam search.

        Args:
            prefix: the beginning of a line, or empty.
            num: number of texts.
            seed: of the samples.
            temperature, top_k, top_p: see :class:`~fairseq_plugins.evaluation.generation.Sampling`.
            beam: number of hypotheses of a beam search, instead of sampling; without temperature, top_k and top_p.
            after: lines that the prefix follows; the models must carry state.
            max_length, stop, unknown: see :class:`~fairseq_plugins.evaluation.generation.TextGenerator`.

        Raises:
            UserError: if a value does not fit.
        """
        prefix, *earlier = self.text.watched([checked_line(prefix), *checked_lines(after)])
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
        if beam is not None:
            sampling.check_unused(beam="beam")
        generator = TextGenerator(self.models, self.text, max_length=max_length, stop=stop, unknown=unknown)
        with ExitStack() as streams:
            before = streams.enter_context(generator.open_stream(earlier)) if earlier else None
            if beam is not None:
                return generator.search(prefix, beam=beam, num=num, after=before)
            return generator.sample(prefix, num=num, seed=seed, sampling=sampling, after=before)


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
    paths = [found for one in given for found in _checkpoints(Path(one))]
    if not paths:
        raise UserError("give a checkpoint")
    check_choice(text, TEXT_KINDS, flag="text")
    check_at_least_one(max_tokens, flag="max_tokens")
    _check_device(device)
    check_checkpoints(paths)
    folder, config = corpus_of(paths[0], data), trained_task(paths[0])
    task = TASK_REGISTRY[config._name]
    if issubclass(task, TranslationTask):
        if text != "raw":
            raise UserError(f"text {text}: a translator reads raw text")
        translator = load_translator(paths, folder)
        prepare_to_score(translator.models, device=device, precision=precision)
        return translator
    if not issubclass(task, LanguageModelingTask):
        raise UserError(f"{paths[0]} was trained for --task {config._name}, neither language modelling nor translation")
    models = prepare_to_score(load_language_models(paths, folder), device=device, precision=precision)
    return TrainedLanguageModel(models, load_side_text(folder, kind=text), max_tokens=max_tokens)


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device {device}: there is none here; give 'cpu', or 'cuda' where torch sees a GPU") from error


def _checkpoints(path: Path) -> List[Path]:
    """The file itself, or the checkpoint of a run's folder, or those of an export."""
    found = checkpoints_of(path)
    if found[0].is_dir():
        check_export(path)
        raise UserError(f"{path} has no checkpoint_best.pt and no checkpoint_last.pt: give a checkpoint's file")
    return found
