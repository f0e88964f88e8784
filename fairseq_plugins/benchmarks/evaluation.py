"""Speed of evaluation: perplexity, test-time methods, and lines of text.

Shapes: n tokens.
"""

import sys
import time
from contextlib import ExitStack
from statistics import median
from typing import Callable, Dict, List, Mapping, Optional, Sequence

import torch
from fairseq.data import Dictionary
from fairseq.models import FairseqLanguageModel
from torch import Tensor
from tqdm import tqdm

from fairseq_plugins.evaluation.evaluator import Evaluator, FlagValues, read_methods
from fairseq_plugins.evaluation.scoring import score_windows
from fairseq_plugins.evaluation.test_time import EvaluatedText
from fairseq_plugins.evaluation.text_scorer import TextScorer
from fairseq_plugins.modules.layers import every_parameter_learns
from fairseq_plugins.reports.tables import as_table

SEGMENT = 5
"""Tokens between two steps of dynamic evaluation."""

NUM_ROWS = 64
"""Rows of the reading with which lines of text are compared."""

PLAIN, PLAIN_ROWS = "no method, 1 row", f"no method, {NUM_ROWS} rows"
LINES = "score_text, each line alone"
FLOOR = f"segments of {SEGMENT} words, their gradients and a pass over the weights"
"""The least that dynamic evaluation must compute."""

_METHODS_ALONE: Dict[str, FlagValues] = {
    PLAIN: {},
    "continuous cache of 500 words": {"cache": "500,0.1,1", "cache-start": "first"},
    "unigram cache of 200 words": {"unigram-cache": "200,0.1"},
    "10 dropout masks": {"dropout-samples": "10"},
    "dynamic evaluation, rms": {"dynamic": "rms", "dynamic-segment": str(SEGMENT)},
    "dynamic evaluation, sgd": {"dynamic": "sgd", "dynamic-rate": "0.01", "dynamic-segment": str(SEGMENT)},
}
METHODS: Dict[str, FlagValues] = {
    **_METHODS_ALONE,
    "all of these, dynamic evaluation by rms": {
        flag: value
        for flags in _METHODS_ALONE.values()
        if flags.get("dynamic") != "sgd"
        for flag, value in flags.items()
    },
}
"""Flags of ``evaluate_lm`` by the name of the method. All read one row."""

REFERENCES: Dict[str, Sequence[str]] = {
    **{name: [PLAIN] for name in METHODS if name != PLAIN},
    **{name: [PLAIN, FLOOR] for name in METHODS if name.startswith("dynamic")},
    LINES: [PLAIN_ROWS],
}
"""The readings with which a reading is compared."""

Reading = Callable[[], float]
"""Reads its text once and returns words per second."""


def method_readings(evaluator: Evaluator, text: EvaluatedText) -> Dict[str, Reading]:
    """A reading of a text in one row for each of :data:`METHODS`.

    Raises:
        UserError: if a method does not fit the models or the data.
    """
    methods = {name: read_methods(flags) for name, flags in METHODS.items()}
    for one in methods.values():
        evaluator.check(one)
        evaluator.statistics(one.passes.dynamic)

    def reading(name: str) -> Reading:
        return lambda: evaluator.evaluate(text, methods[name]).words_per_second

    return {name: reading(name) for name in methods}


def gradient_reading(models: Sequence[FairseqLanguageModel], tokens: Tensor, *, device: str) -> Reading:
    """:data:`FLOOR` on a stream (n): forward and backward passes, and one read and write of every weight."""

    def read() -> float:
        start, num_words = time.perf_counter(), 0
        with ExitStack() as stack:
            for model in models:
                stack.enter_context(every_parameter_learns(model))
            for window in score_windows(models, tokens, window=SEGMENT, with_gradients=True, device=device):
                for model, scores in zip(models, window.scores):
                    weights = list(model.parameters())
                    torch.autograd.grad(scores.output, weights, materialize_grads=True)
                    with torch.no_grad():
                        for weight in weights:
                            weight.mul_(1)
                num_words += window.target.numel()
        return num_words / (time.perf_counter() - start)

    return read


def line_reading(scorer: TextScorer, lines: Sequence[str]) -> Reading:
    """A reading of lines of text, each from fresh state."""

    def read() -> float:
        start = time.perf_counter()
        num_words = sum(len(line.tokens) for line in scorer.score_stream(lines))
        return num_words / (time.perf_counter() - start)

    return read


def lines_of(tokens: Tensor, dictionary: Dictionary, *, num_lines: int) -> List[str]:
    """The first lines of a stream (n) as text without end marks."""
    ends = (tokens == dictionary.eos()).nonzero().flatten().tolist()[:num_lines]
    starts = [0, *(end + 1 for end in ends)]
    return [dictionary.string(tokens[start:end]) for start, end in zip(starts, ends)]


def median_speeds(readings: Mapping[str, Reading], *, num_rounds: int) -> Dict[str, float]:
    """Median words per second of each reading. Rounds alternate in order. A first round warms up and does not count."""
    speeds: Dict[str, List[float]] = {name: [] for name in readings}
    turns = [name for turn in range(1 + num_rounds) for name in list(readings)[:: -1 if turn % 2 else 1]]
    for name in tqdm(turns, unit="reading", disable=not sys.stderr.isatty()):
        speeds[name].append(readings[name]())
    return {name: median(found[1:]) for name, found in speeds.items()}


def as_markdown(speeds: Mapping[str, float]) -> str:
    """Speeds, and their ratios to those of their references."""
    rows = [
        (name, f"{speed:,.0f}", *(_ratio(speeds, name, reference) for reference in (PLAIN, FLOOR, PLAIN_ROWS)))
        for name, speed in speeds.items()
    ]
    columns = ["", "words per second", *(f"/ {reference}" for reference in (PLAIN, FLOOR, PLAIN_ROWS))]
    return as_table(columns, rows)


def _ratio(speeds: Mapping[str, float], name: str, reference: str) -> Optional[str]:
    return f"{speeds[name] / speeds[reference]:.2f}" if reference in REFERENCES.get(name, ()) else None
