"""NLL and perplexity of text by trained models.

=========================  ==================================================================
:func:`score_windows`      a split as one stream; state is carried from window to window
:class:`ScoredStream`      a stream that comes piece by piece
:func:`score_sequences`    separate sequences, each from a fresh state
:func:`score_lines`        the same, one by one, with the input and the result of the output layer
:func:`score_pairs`        sentence pairs, by an encoder-decoder that reads the true target
:func:`perplexity_of`      perplexity of scored windows
=========================  ==================================================================

Several language models are averaged as probabilities, in float64.

Shapes: M models, n tokens, B rows of a batch, T its length, V vocabulary, * any.
"""

import math
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ContextManager, Dict, Iterable, Iterator, List, Literal, Optional, Sequence, Tuple, TypeVar

import torch
from fairseq import utils
from fairseq.data import Dictionary, LanguagePairDataset
from fairseq.models import BaseFairseqModel, FairseqEncoderDecoderModel, FairseqLanguageModel
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from fairseq_plugins.console import progress
from fairseq_plugins.data.streams import ContiguousStreams, fixed_windows
from fairseq_plugins.models.decoder import StreamState, new_stream
from fairseq_plugins.ops.mixture_distribution import mean_log_probs
from fairseq_plugins.options import UserError, check_choice
from fairseq_plugins.output_layers.base import OUTPUT_PRECISIONS, OutputLayer, OutputPrecision
from fairseq_plugins.output_layers.scores import DecoderStates, Scores


class NonFiniteLoss(UserError):
    """A model's NLL is inf or NaN."""


def average_log_probs(log_probs: Sequence[Tensor]) -> Tensor:
    """Log of the mean of the models' probabilities, (*) float64; ``log_probs`` holds (*) for each model."""
    return mean_log_probs([one.double() for one in log_probs])


def average_nll(nll: Sequence[Tensor]) -> Tensor:
    """NLL of the averaged probabilities, (*) float64 without gradient; ``nll`` holds (*) in nats for each model.

    Raises NonFiniteLoss if a model's NLL is not finite.
    """
    for number, one in enumerate(nll, start=1):
        finite = one.isfinite()
        if not finite.all():
            name = "the model" if len(nll) == 1 else f"model {number} of {len(nll)}"
            raise NonFiniteLoss(
                f"the loss of {name} is {float(one[~finite][0])}: its training diverged or its checkpoint is damaged; "
                "take another checkpoint"
            )
    return -average_log_probs([-one.detach() for one in nll])


def device_of(model: nn.Module) -> torch.device:
    """The device of a model with all parameters on one device."""
    return next(model.parameters()).device


# Streams, window by window.


@dataclass(frozen=True)
class ScoredWindow:
    """Output of M models for a window. All tensors are on the models' device.

    Attributes:
        position: of the first input in its row.
        inputs: the tokens that are read, (B, T).
        target: the tokens that are predicted, (B, T).
        nll: of the targets in nats, (B, T) float64 without gradient, of the models' averaged probabilities.
        states: input of each output layer, M; the outputs of the recurrent layers are in ``states[m].layers``.
        scores: result of each output layer, M. ``scores[m].loss`` is the NLL summed over the window, if only the
            targets are scored. Otherwise ``scores[m].log_probs`` has all words, (B, T, V).
    """

    position: int
    inputs: Tensor
    target: Tensor
    nll: Tensor
    states: List[DecoderStates]
    scores: List[Scores]


def score_windows(
    models: Sequence[FairseqLanguageModel],
    tokens: Tensor,
    *,
    num_rows: int = 1,
    window: int = 1000,
    words: Literal["targets", "all"] = "targets",
    with_gradients: bool = False,
) -> Iterator[ScoredWindow]:
    """Score a stream in order. State is carried through each row, from zeros at its start.

    Every token except the first of a row is predicted once. Tokens at the end that do not fill a row are left out. The
    models are put into evaluation mode for each window. Carried state of other streams, such as the training text, is
    neither read nor changed. The caller may change weights between windows.

    Args:
        models: language models that carry their state, on one device. Several are averaged as probabilities.
        tokens: (n,) int64, cut into ``num_rows`` rows, B.
        window: tokens of a row in one forward pass; does not change the result beyond rounding.
        words: compute the probabilities of all words, or only of the targets, which takes less memory.
        with_gradients: whether ``states`` and ``scores`` have gradients. None crosses a window.

    Raises:
        UserError: if the stream is too short for the rows, or an NLL is not finite.
    """
    name = new_stream("scored windows")
    streams = ContiguousStreams(tokens, name=name, num_rows=num_rows)
    try:
        with progress(total=num_rows * len(streams), unit="token") as bar:
            for cut in fixed_windows(len(streams), length=window):
                batch = streams[cut]
                inputs, position = batch["net_input"]["src_tokens"], batch["net_input"]["position"]
                # a generator must not leave gradients switched on or off in the code of its reader
                with torch.set_grad_enabled(with_gradients):
                    scored = _score_window(models, inputs, batch["target"], stream=name, position=position, words=words)
                yield scored
                bar.update(scored.target.numel())
    finally:
        for model in models:
            model.decoder.carried_state.forget(name)


def check_rows(tokens: Tensor, *, num_rows: int, split: str, flag: str = "--rows") -> None:
    """Check that a split has at least two tokens a row, an input and a target."""
    num_tokens = tokens.numel()
    if num_tokens < 2 * num_rows:
        raise UserError(f"{flag} {num_rows}: {split} has {num_tokens:,} tokens; give at most {num_tokens // 2}")


def _score_window(
    models: Sequence[FairseqLanguageModel],
    inputs: Tensor,
    target: Tensor,
    *,
    stream: str,
    position: int,
    words: Literal["targets", "all"] = "targets",
) -> ScoredWindow:
    """Let models read the window of a stream that begins at a position."""
    device = device_of(models[0])
    inputs, target = inputs.to(device), target.to(device)
    # with a target the output layer returns its NLL alone and never holds (B, T, V)
    scored_target = target if words == "targets" else None
    extras = [model.eval()(inputs, stream=stream, position=position, target=scored_target)[1] for model in models]
    scores = [extra["scores"] for extra in extras]
    if words == "targets":
        nll = [one.nll for one in scores]
    else:
        nll = [-one.log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1) for one in scores]
    return ScoredWindow(
        position=position,
        inputs=inputs,
        target=target,
        nll=average_nll(nll),
        states=[extra["states"] for extra in extras],
        scores=scores,
    )


# Streams that come piece by piece.


class ScoredStream:
    """Scores pieces of a stream one after the other; state is carried from piece to piece.

    The stream begins with an end mark, which is read and not scored. As a context manager the stream drops its state at
    the end. Streams are independent, so that several threads can read one each. Several models are averaged as
    probabilities. ``window`` is the number of tokens that a forward pass reads; it does not change the result beyond
    rounding.
    """

    def __init__(self, models: Sequence[FairseqLanguageModel], *, window: int = 1000):
        self.models = models
        self.window = window
        self.name = new_stream("scored stream")
        self.position = 0
        self.last = int(models[0].decoder.dictionary.eos())
        """The token that is read next."""

    def __enter__(self) -> "ScoredStream":
        return self

    def __exit__(self, *error: object) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin another stream, with fresh state."""
        for model in self.models:
            model.decoder.carried_state.forget(self.name)
        self.position = 0
        self.last = int(self.models[0].decoder.dictionary.eos())

    @torch.no_grad()
    def score(self, tokens: Tensor) -> Tensor:
        """NLL in nats of the next tokens (n,) of the stream, (n,) float64 on the CPU.

        Raises UserError if an NLL is not finite.
        """
        parts = [self._score(part) for part in tokens.split(self.window)] if len(tokens) else []
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def _score(self, tokens: Tensor) -> Tensor:
        target = tokens.unsqueeze(0)
        inputs = shifted(target, first=self.last)
        window = _score_window(self.models, inputs, target, stream=self.name, position=self.position)
        self.position += len(tokens)
        self.last = int(tokens[-1])
        return window.nll.squeeze(0).cpu()

    def states(self) -> List[Optional[StreamState]]:
        """The state of each model before :attr:`last`, one row; None, which stands for zeros, at the start."""
        if self.position == 0:
            return [None] * len(self.models)
        return [model.decoder.carried_state.get(self.name, self.position) for model in self.models]

    def fork(self) -> "ScoredStream":
        """Another stream with the same text before it."""
        other = ScoredStream(self.models, window=self.window)
        if self.position > 0:
            for model, state in zip(self.models, self.states()):
                assert state is not None
                model.decoder.carried_state.set(other.name, self.position, state)
        other.position, other.last = self.position, self.last
        return other


def shifted(target: Tensor, *, first: int) -> Tensor:
    """Inputs for targets (..., n): each target's predecessor, and ``first`` for the first of them."""
    inputs = target.roll(1, dims=-1)
    inputs[..., 0] = first
    return inputs


# Separate sequences, each from a fresh state.


@torch.no_grad()
def score_sequences(
    models: Sequence[FairseqLanguageModel],
    sequences: Sequence[Tensor],
    *,
    max_tokens: int = 4096,
    window: int = 4096,
) -> List[Tensor]:
    """NLL in nats of each token of independent sequences, each (n,) float64 on the CPU, in the order of ``sequences``.

    Every token is predicted, the first one from an end mark. An end mark at the end of a sequence is predicted as well.
    Sequences are batched by length and padded on the right. No carried state is read or changed.

    Args:
        models: language models on one device with one vocabulary. Several are averaged as probabilities.
        sequences: each (n,) int64, not empty.
        max_tokens: of a batch, padding included; a longer sequence is a batch of its own.
        window: a longer sequence is read alone, in windows of this many tokens. Neither number changes the result
            beyond rounding.

    Raises:
        UserError: if the models have different vocabularies, or an NLL is not finite.
    """
    assert window >= 1
    assert all(len(sequence) > 0 for sequence in sequences)
    dictionary = check_vocabularies(models)
    for model in models:
        model.eval()
    device = device_of(models[0])
    lengths = [len(sequence) for sequence in sequences]

    scored: Dict[int, Tensor] = {}
    with progress(total=sum(lengths), unit="token") as bar:
        for indices in batches_by_length(lengths, max_tokens=max_tokens):
            if lengths[indices[0]] > window:
                for i in indices:
                    with ScoredStream(models, window=window) as stream:
                        scored[i] = stream.score(sequences[i])
                    bar.update(lengths[i])
                continue
            target = pad_sequence([sequences[i] for i in indices], batch_first=True, padding_value=dictionary.pad())
            target = target.to(device)
            inputs = shifted(target, first=dictionary.eos())
            ends = torch.tensor([[lengths[i]] for i in indices], device=device)
            is_token = torch.arange(target.size(1), device=device) < ends
            found = [model(inputs, target=target, token_weights=is_token)[1]["scores"].nll for model in models]
            nll = average_nll(found).cpu()
            scored.update((i, row[: lengths[i]].clone()) for i, row in zip(indices, nll))
            bar.update(sum(lengths[i] for i in indices))
    return [scored[i] for i in range(len(sequences))]


def check_vocabularies(models: Sequence[FairseqLanguageModel]) -> Dictionary:
    """The common vocabulary of all models. Raises UserError if they have different ones."""
    dictionary: Dictionary = models[0].decoder.dictionary
    if any(model.decoder.dictionary != dictionary for model in models):
        raise UserError(
            "the models have different vocabularies and cannot be averaged: take models that were trained with the "
            "same dict.txt"
        )
    return dictionary


def batches_by_length(lengths: Sequence[int], *, max_tokens: int) -> Iterator[List[int]]:
    """Indices of sequences, the longest first, so that a batch that does not fit into memory fails at once.

    A batch has at most ``max_tokens`` tokens, padding included. A longer sequence is a batch of its own.
    """
    batch: List[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        if batch and lengths[batch[0]] * (len(batch) + 1) > max_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


# Sentence pairs, with teacher forcing.


@dataclass(frozen=True)
class ScoredBatch:
    """Output of a model for B pairs, or for a line, B = 1. All tensors are on the model's device.

    Attributes:
        numbers: indices of the pairs or the line in the given lists, B.
        target: the tokens that are predicted, (B, T).
        is_token: False at padding, (B, T).
        nll: of the targets in nats, (B, T) float64, 0 at padding.
        states: input of the output layer; None for fairseq's own models.
        scores: result of the output layer; None for fairseq's own models.
    """

    numbers: List[int]
    target: Tensor
    is_token: Tensor
    nll: Tensor
    states: Optional[DecoderStates]
    scores: Optional[Scores]


def score_pairs(
    model: FairseqEncoderDecoderModel,
    sources: Sequence[Tensor],
    targets: Sequence[Tensor],
    *,
    max_tokens: int = 4096,
) -> Iterator[ScoredBatch]:
    """Score every token of the targets, the end mark included. The longest pairs come first.

    Args:
        model: fairseq's included; put into evaluation mode.
        sources, targets: sequences of the two dictionaries, each (n,) int64 with the end mark.
        max_tokens: of a batch on its longer side, padding included; a longer pair is a batch of its own. Does not
            change the result beyond rounding.

    Raises:
        UserError: if a pair is longer than the model reads, or an NLL is not finite.
    """
    assert len(sources) == len(targets)
    _check_pair_lengths(sources, targets, limits=model.max_positions())
    dictionaries = model.encoder.dictionary, model.decoder.dictionary
    pairs = LanguagePairDataset(
        *(sources, [len(one) for one in sources], dictionaries[0]),
        *(targets, [len(one) for one in targets], dictionaries[1]),
        shuffle=False,
    )
    lengths = [max(len(source), len(target)) for source, target in zip(sources, targets)]
    model.eval()
    device = device_of(model)
    with progress(total=len(pairs), unit="pair") as bar:
        for numbers in batches_by_length(lengths, max_tokens=max_tokens):
            batch = pairs.collater([pairs[number] for number in numbers])
            batch = utils.move_to_cuda(batch, device=device) if device.type == "cuda" else batch
            with torch.no_grad():
                scored = _score_batch(model, batch, padding=dictionaries[1].pad())
            yield scored
            bar.update(len(numbers))


def score_lines(model: FairseqLanguageModel, lines: Sequence[Tensor]) -> Iterator[ScoredBatch]:
    """Score every token of lines, each (n,) int64 with its end mark. Each is a batch, read from a fresh state.

    The model is put into evaluation mode. Raises UserError if an NLL is not finite.
    """
    model.eval()
    for number, line in enumerate(lines):
        target = line.unsqueeze(0).to(device_of(model))
        inputs = shifted(target, first=model.decoder.dictionary.eos())
        with torch.no_grad():
            extra = model(inputs, target=target)[1]
        yield ScoredBatch(
            numbers=[number],
            target=target,
            is_token=torch.ones_like(target, dtype=torch.bool),
            nll=average_nll([extra["scores"].nll]),
            states=extra["states"],
            scores=extra["scores"],
        )


def _score_batch(model: FairseqEncoderDecoderModel, batch: Dict[str, Any], *, padding: int) -> ScoredBatch:
    target, net_input = batch["target"], batch["net_input"]
    is_token = target.ne(padding)
    states = scores = None
    if isinstance(getattr(model.decoder, "output", None), OutputLayer):
        extra = model(**net_input, target=target, token_weights=is_token)[1]
        states, scores = extra["states"], extra["scores"]
        nll = scores.nll
    else:
        log_probs = model.get_normalized_probs(model(**net_input), log_probs=True)
        nll = -log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1).masked_fill(~is_token, 0)
    return ScoredBatch(
        numbers=batch["id"].tolist(),
        target=target,
        is_token=is_token,
        nll=average_nll([nll]),
        states=states,
        scores=scores,
    )


def _check_pair_lengths(sources: Sequence[Tensor], targets: Sequence[Tensor], *, limits: Sequence[int]) -> None:
    for side, sequences, limit in zip(("source", "target"), (sources, targets), limits):
        for number, sequence in enumerate(sequences, start=1):
            if len(sequence) > limit:
                raise UserError(
                    f"the {side} of pair {number} has {len(sequence):,} tokens and the model reads at most {limit:,}: "
                    "leave the pair out or take another model"
                )


# Perplexity.


@dataclass(frozen=True)
class Perplexity:
    """Perplexity of a stream, counted as in the literature on recurrent language models.

    The corpus is one stream with an end mark after every line. State is carried through it. Every token except the
    first of a row is predicted once.

    Attributes:
        num_tokens: number of predictions.
        nll: mean negative log-likelihood of a prediction, in nats.
        num_unknown: predictions whose target is the unknown word.
        num_leftover_tokens: tokens at the end that did not fill a row and were not scored.
    """

    num_tokens: int
    nll: float
    num_unknown: int
    num_leftover_tokens: int

    @property
    def perplexity(self) -> float:
        """exp(nll)."""
        return exponential(self.nll)

    @property
    def bits_per_token(self) -> float:
        """The mean negative log-likelihood in bits."""
        return self.nll / math.log(2)


def exponential(nll: float) -> float:
    """exp(nll), or inf where that overflows: the perplexity of a mean NLL in nats."""
    try:
        return math.exp(nll)
    except OverflowError:
        return math.inf


def evaluate_perplexity(
    models: Sequence[FairseqLanguageModel], tokens: Tensor, *, num_rows: int = 1, **options: Any
) -> Perplexity:
    """Score a stream with fixed weights, as :func:`score_windows` does.

    Raises UserError if the stream is too short for the rows, or the result is not finite.
    """
    windows = score_windows(models, tokens, num_rows=num_rows, **options)
    scored = ((window.nll, window.target) for window in windows)
    unknown: int = models[0].decoder.dictionary.unk()
    return perplexity_of(scored, unknown=unknown, num_leftover_tokens=tokens.numel() % num_rows)


def perplexity_of(
    windows: Iterable[Tuple[Tensor, Tensor]], *, unknown: int, num_leftover_tokens: int = 0
) -> Perplexity:
    """Perplexity of scored windows, each the NLL in nats, float64, and the target of each token, of the same shape.

    Raises NonFiniteLoss if the mean is not finite.
    """
    total = torch.zeros((), dtype=torch.float64)
    num_tokens = num_unknown = 0
    for nll, target in windows:
        total += nll.sum().cpu()
        num_tokens += target.numel()
        num_unknown += int(target.eq(unknown).sum())
    if not total.isfinite():
        raise NonFiniteLoss(f"the loss of the text is {float(total)}: the mixture gives a word no finite probability")
    return Perplexity(
        num_tokens=num_tokens,
        nll=float(total) / num_tokens,
        num_unknown=num_unknown,
        num_leftover_tokens=num_leftover_tokens,
    )


# The precision of output layers.

Model = TypeVar("Model", bound=BaseFairseqModel)


def prepare_to_score(models: Sequence[Model], *, device: str, precision: str) -> List[Model]:
    """Move models to a device and set the precision in which their output layers compute scores.

    Raises UserError if ``--output-precision`` has no such value, or the device or a model does not support it.
    """
    check_choice(precision, OUTPUT_PRECISIONS, flag="--output-precision")
    if precision == "bfloat16" and not all(_output_precisions([model]) for model in models):
        raise UserError(
            f"--output-precision {precision}: a model's output layer computes only in the model's precision; leave "
            "it out"
        )
    moved = [model.to(device) for model in models]
    for part in _output_precisions(moved):
        part.score_in(precision)
    return moved


def scores_in_float32(models: Sequence[BaseFairseqModel]) -> ContextManager[None]:
    """The models' output layers compute scores in float32 within the block."""
    parts = _output_precisions(models)
    return set_within_block(parts, "scores_in", ["float32"] * len(parts))


def _output_precisions(models: Sequence[BaseFairseqModel]) -> List[OutputPrecision]:
    return [part for model in models for part in model.modules() if isinstance(part, OutputPrecision)]


@contextmanager
def set_within_block(parts: Sequence[object], name: str, values: Sequence[object]) -> Iterator[None]:
    """Set an attribute of each part, and restore the former values at the end of the block."""
    former_values = [getattr(part, name) for part in parts]
    try:
        for part, value in zip(parts, values):
            setattr(part, name, value)
        yield
    finally:
        for part, former in zip(parts, former_values):
            setattr(part, name, former)
