"""Evaluation of binarised splits with test-time methods, by language models or by an n-gram model alone."""

import math
import time
from collections import defaultdict
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Dict, Generator, List, Mapping, Optional, Sequence, Tuple

import torch
from fairseq.models import FairseqLanguageModel
from torch import Tensor

from fairseq_plugins.console import progress
from fairseq_plugins.data.text import load_token_stream, load_training_stream
from fairseq_plugins.evaluation.dynamic_evaluation import (
    AdaptingWeights,
    DynamicOptions,
    every_parameter_learns,
    kept_gradient_statistics,
)
from fairseq_plugins.evaluation.methods import (
    Component,
    ComponentScores,
    DropoutSamples,
    EvaluatedText,
    Methods,
    Passes,
    Reader,
    interpolate,
    sampled_masks,
    softmax_temperature,
)
from fairseq_plugins.evaluation.scoring import (
    NonFiniteLoss,
    Perplexity,
    ScoredWindow,
    check_rows,
    check_vocabularies,
    perplexity_of,
    score_windows,
)
from fairseq_plugins.ngrams.model import NGramModel
from fairseq_plugins.options import UserError


class Evaluator:
    """Scores splits of a folder of binarised text with trained models.

    Args:
        models: in evaluation mode, on one device, loaded from ``checkpoints``. Several are averaged as probabilities.
        window: tokens of a row in one forward pass.
    """

    def __init__(
        self,
        models: Sequence[FairseqLanguageModel],
        *,
        checkpoints: Sequence[Path],
        data: Path,
        window: int,
    ):
        self.models = models
        self.checkpoints = checkpoints
        self.data = data
        self.dictionary = check_vocabularies(models)
        self.window = window
        self._train: Optional[Tensor] = None

    def text(self, split: str, *, num_rows: int) -> EvaluatedText:
        """A split. Raises UserError if it is missing or empty, or too short for the rows."""
        tokens = load_token_stream(self.data, split, self.dictionary)
        check_rows(tokens, num_rows=num_rows, split=split)
        return EvaluatedText(tokens, dictionary=self.dictionary, num_rows=num_rows)

    def check(self, passes: Passes) -> None:
        """Check that methods fit the models and the data, before any work."""
        with softmax_temperature(self.models, temperature=passes.temperature):
            pass
        if passes.dropout is not None:
            with sampled_masks(self.models, scale=passes.dropout.scale):
                pass
        if passes.dynamic is not None and passes.dynamic.rule == "rms":
            self._training_text(num_rows=passes.dynamic.rows)

    def statistics(self, dynamic: Optional[DynamicOptions]) -> List[Dict[str, Tensor]]:
        """Mean squared gradients of each model over the training text, kept beside the checkpoints; empty if unused.

        Raises UserError if there is no training text, or it is too short.
        """
        if dynamic is None or dynamic.rule != "rms" or not dynamic.changes_weights:
            return []
        train = self._training_text(num_rows=dynamic.rows)
        return [
            kept_gradient_statistics(
                model, train, checkpoint=checkpoint, num_rows=dynamic.rows, segment=dynamic.segment
            )
            for model, checkpoint in zip(self.models, self.checkpoints)
        ]

    def score(
        self, text: EvaluatedText, passes: Passes, components: Sequence[Component]
    ) -> Generator[Tuple[ScoredWindow, List[ComponentScores]], None, None]:
        """Score a text in order: windows with their NLL by the models, and what :func:`interpolate` mixes with them.

        Preparations come at once. The methods learn of a window after it was yielded. At the end, and when the
        generator is closed or fails, the models have their former weights and settings. Raises UserError if a model or
        the text does not fit the methods, or an NLL is not finite.
        """
        readers = [component.reader(text) for component in components]
        return self._score(text, passes, readers, self.statistics(passes.dynamic))

    def _score(
        self, text: EvaluatedText, passes: Passes, readers: Sequence[Reader], mean_squares: Sequence[Dict[str, Tensor]]
    ) -> Generator[Tuple[ScoredWindow, List[ComponentScores]], None, None]:
        dynamic = passes.dynamic
        adapts = dynamic is not None and dynamic.changes_weights
        with ExitStack() as stack:
            stack.enter_context(softmax_temperature(self.models, temperature=passes.temperature))
            samples = None
            if passes.dropout is not None:
                samples = DropoutSamples(self.models, passes.dropout)
                stack.callback(samples.forget)
            weights: List[AdaptingWeights] = []
            if dynamic is not None and adapts:
                for number, model in enumerate(self.models):
                    stack.enter_context(every_parameter_learns(model))
                    squares = mean_squares[number] if dynamic.rule == "rms" else {}
                    weights.append(AdaptingWeights(model, dynamic, mean_squares=squares))
                    stack.callback(weights[-1].restore)
            windows = score_windows(
                self.models,
                text.tokens,
                num_rows=text.num_rows,
                window=self.window if dynamic is None else dynamic.segment,
                with_gradients=adapts,
            )
            num_steps = 0
            try:
                for scored in windows:
                    if samples is not None:
                        scored = replace(scored, nll=samples.nll(scored))
                    yield scored, [read(scored) for read in readers]
                    for one, scores in zip(weights, scored.scores):
                        # the models do not share a loss, so that each can be evaluated and tuned alone
                        one.follow(scores.output / scored.target.numel())
                    num_steps += len(weights)
            except NonFiniteLoss as error:
                if dynamic is not None and num_steps > 0:
                    raise NonFiniteLoss(
                        f"--dynamic-rate {dynamic.rate:g}: the weights diverged; give a lower one"
                    ) from error
                if passes.temperature < 1:
                    raise NonFiniteLoss(
                        f"--temperature {passes.temperature:g}: the logits are not finite; give a higher one; if it "
                        "fails without --temperature as well, the checkpoint is at fault"
                    ) from error
                raise

    def evaluate(self, text: EvaluatedText, methods: Methods) -> Tuple[Perplexity, float]:
        """Perplexity of a text, and predictions a second without preparations.

        Raises UserError if the models or the text do not fit the methods, or the result is not finite.
        """
        weights = list(methods.mixed.values())
        with closing(self.score(text, methods.passes, list(methods.mixed))) as windows:
            start = time.perf_counter()
            perplexity = perplexity_of(
                ((-interpolate(-one.nll, mixed, weights), one.target) for one, mixed in windows),
                unknown=self.dictionary.unk(),
                num_leftover_tokens=text.tokens.numel() % text.num_rows,
            )
            return perplexity, perplexity.num_tokens / (time.perf_counter() - start)

    def tune(self, text: EvaluatedText, points: Sequence[Methods]) -> List[float]:
        """The mean NLL in nats of every point of a grid; inf where it is not finite.

        The models read the text once for all points that differ only in the components that are mixed in. Raises
        UserError if no point has a finite NLL.
        """
        groups: Dict[Passes, List[int]] = defaultdict(list)
        for number, point in enumerate(points):
            groups[point.passes].append(number)
        found = [math.inf] * len(points)
        failure: Optional[NonFiniteLoss] = None
        for passes, numbers in progress(groups.items(), desc="tuning", unit="pass"):
            components = list(dict.fromkeys(one for number in numbers for one in points[number].mixed))
            weights = [[points[number].mixed.get(one, 0.0) for one in components] for number in numbers]
            totals = torch.zeros(len(numbers), dtype=torch.float64)
            num_tokens = 0
            try:
                with closing(self.score(text, passes, components)) as windows:
                    for window, mixed in windows:
                        num_tokens += window.target.numel()
                        totals -= torch.stack([interpolate(-window.nll, mixed, each).sum() for each in weights]).cpu()
            except NonFiniteLoss as error:
                failure = error
                continue
            means = (totals / num_tokens).nan_to_num(nan=math.inf, posinf=math.inf).tolist()
            for number, mean in zip(numbers, means):
                found[number] = mean
        if all(nll == math.inf for nll in found):
            raise failure or NonFiniteLoss("--tune: no point of the grid has a finite loss: give other values")
        return found

    def _training_text(self, *, num_rows: int) -> Tensor:
        if self._train is None:
            self._train = load_training_stream(self.data, self.dictionary)
        check_rows(self._train, num_rows=num_rows, split="train", flag="--dynamic-rows")
        return self._train


# An n-gram model without another model.


def evaluate_ngram_model(
    model: NGramModel, tokens: Tensor, *, mixed: Mapping[Component, float]
) -> Tuple[Perplexity, Perplexity]:
    """Perplexity over all tokens, as in the literature on n-gram models, and without the first, as for recurrent ones.

    The stream (n,) int64 has at least two tokens. End marks are predicted, and contexts do not cross lines. ``mixed``
    has the weights of the components that are mixed in. The first token has the probability of the model alone. Raises
    UserError if a token has probability zero.
    """
    text = EvaluatedText(tokens, dictionary=model.dictionary, num_rows=1)
    log_probs = model.log_probs(tokens)
    window = ScoredWindow(
        position=0,
        inputs=tokens[None, :-1],
        target=tokens[None, 1:],
        nll=-log_probs[None, 1:],
        states=[],
        scores=[],
    )
    scores = [component.reader(text)(window) for component in mixed]
    log_probs[1:] = interpolate(-window.nll, scores, list(mixed.values()))[0]
    impossible = log_probs.isinf()
    if bool(impossible.any()):
        raise UserError(
            f"{int(impossible.sum()):,} of {len(tokens):,} tokens, such as "
            f"'{model.dictionary[int(tokens[impossible][0])]}', have probability zero: use a model that has all words "
            "of the text, or <unk>"
        )
    all_tokens, without_first = (
        perplexity_of([(-log_probs[start:], tokens[start:])], unknown=model.dictionary.unk()) for start in (0, 1)
    )
    return all_tokens, without_first
