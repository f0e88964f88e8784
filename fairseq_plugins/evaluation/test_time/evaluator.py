"""Trained models on the splits of their data, with test-time methods."""

import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Generator, List, Optional, Sequence, Tuple

from fairseq.data import Dictionary
from fairseq.models import FairseqLanguageModel
from torch import Tensor

from fairseq_plugins.data.corpus import load_token_stream, load_training_stream
from fairseq_plugins.evaluation.perplexity import Perplexity, perplexity_of
from fairseq_plugins.evaluation.scored_windows import check_rows
from fairseq_plugins.evaluation.test_time.dropout_samples import sampled_masks
from fairseq_plugins.evaluation.test_time.dynamic_evaluation import DynamicOptions
from fairseq_plugins.evaluation.test_time.gradient_statistics import kept_gradient_statistics
from fairseq_plugins.evaluation.test_time.methods import ComponentOptions, EvaluatedText, Methods, Passes
from fairseq_plugins.evaluation.test_time.temperature import softmax_temperature
from fairseq_plugins.evaluation.test_time.token_scores import TokenScores, score_tokens
from fairseq_plugins.evaluation.test_time.tuning import TunedPoint, tune


@dataclass(frozen=True)
class Evaluation:
    """What was measured on a text.

    Attributes:
        perplexity: of its tokens.
        seconds: that the scoring took, without what was read or computed before.
    """

    perplexity: Perplexity
    seconds: float

    @property
    def words_per_second(self) -> float:
        """Predictions a second."""
        return self.perplexity.num_tokens / self.seconds


class Evaluator:
    """Scores splits of a folder of binarised text.

    Args:
        models: in evaluation mode, on ``device``. Several are averaged as probabilities.
        checkpoints: their paths.
        data: the folder.
        dictionary: of the data.
        num_rows: rows that a split is cut into.
        window: tokens a forward pass.
        device: where the models are.
        show_progress: draw bars.
    """

    def __init__(
        self,
        models: Sequence[FairseqLanguageModel],
        *,
        checkpoints: Sequence[Path],
        data: Path,
        dictionary: Dictionary,
        num_rows: int,
        window: int,
        device: str,
        show_progress: bool,
    ):
        self.models = models
        self.checkpoints = checkpoints
        self.data = data
        self.dictionary = dictionary
        self.num_rows = num_rows
        self.options: Dict[str, Any] = {"window": window, "device": device, "show_progress": show_progress}
        self._train: Optional[Tensor] = None
        self._statistics: Dict[Tuple[int, int], List[Dict[str, Tensor]]] = {}

    def text(self, split: str) -> EvaluatedText:
        """A split.

        Raises:
            ValueError: if it is missing or empty, or too short for the rows.
        """
        tokens = load_token_stream(self.data, split, self.dictionary)
        check_rows(tokens, num_rows=self.num_rows, split=split)
        return EvaluatedText(tokens, dictionary=self.dictionary, num_rows=self.num_rows)

    def check(self, methods: Methods) -> None:
        """Refuse methods that do not fit the models or the data, before any work.

        Raises:
            ValueError: if they do not.
        """
        passes = methods.passes
        with softmax_temperature(self.models, temperature=passes.temperature):
            pass
        if passes.dropout is not None:
            with sampled_masks(self.models, scale=passes.dropout.scale):
                pass
        if passes.dynamic is not None and passes.dynamic.rule == "rms":
            self._training_text(num_rows=passes.dynamic.rows)

    def statistics(self, dynamic: Optional[DynamicOptions]) -> List[Dict[str, Tensor]]:
        """Of each model's gradients over the training text, where the methods read them; kept beside the checkpoints.

        Raises:
            ValueError: if there is no training text, or it is too short.
        """
        if dynamic is None or dynamic.rule != "rms" or not dynamic.changes_weights:
            return []
        key = dynamic.rows, dynamic.segment
        if key in self._statistics:
            return self._statistics[key]
        train = self._training_text(num_rows=dynamic.rows)
        self._statistics[key] = [
            kept_gradient_statistics(
                model,
                train,
                checkpoint=checkpoint,
                num_rows=dynamic.rows,
                segment=dynamic.segment,
                device=self.options["device"],
                show_progress=self.options["show_progress"],
            )
            for model, checkpoint in zip(self.models, self.checkpoints)
        ]
        return self._statistics[key]

    def score(
        self, text: EvaluatedText, passes: Passes, components: Sequence[ComponentOptions]
    ) -> Generator[TokenScores, None, None]:
        """The text's windows in order; see :func:`~fairseq_plugins.evaluation.test_time.token_scores.score_tokens`."""
        return score_tokens(
            self.models,
            text,
            passes=passes,
            components=[options.build(text) for options in components],
            mean_squares=self.statistics(passes.dynamic),
            **self.options,
        )

    def evaluate(self, text: EvaluatedText, methods: Methods) -> Evaluation:
        """Perplexity of a text, and what it took.

        Raises:
            ValueError: if the models or the text do not fit the methods, or the result is not finite.
        """
        with closing(self.score(text, methods.passes, methods.components)) as windows:
            start = time.perf_counter()
            perplexity = perplexity_of(
                ((-window.mixed(methods.weights), window.target) for window in windows),
                tokens=text.tokens,
                unknown=self.dictionary.unk(),
                num_rows=self.num_rows,
            )
            return Evaluation(perplexity, seconds=time.perf_counter() - start)

    def tune(self, text: EvaluatedText, points: Sequence[Dict[str, str]]) -> List[TunedPoint]:
        """The points of a grid, the best one first; see :func:`~fairseq_plugins.evaluation.test_time.tuning.tune`."""

        def score(passes: Passes, components: Sequence[ComponentOptions]) -> Generator[TokenScores, None, None]:
            return self.score(text, passes, components)

        return tune(points, score, show_progress=self.options["show_progress"])

    def _training_text(self, *, num_rows: int) -> Tensor:
        if self._train is None:
            self._train = load_training_stream(self.data, self.dictionary)
        num_tokens = self._train.numel()
        if num_tokens < 2 * num_rows:
            raise ValueError(
                f"--dynamic-rows {num_rows}: train has {num_tokens:,} tokens; give at most {num_tokens // 2}"
            )
        return self._train
