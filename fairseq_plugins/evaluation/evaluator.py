"""Evaluation of binarised splits with test-time methods: the flags, the grid search for their values, the evaluator."""

import argparse
import itertools
import math
import time
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, Generator, List, Mapping, Optional, Sequence, Tuple

import torch
from fairseq.data import Dictionary
from fairseq.models import FairseqLanguageModel
from torch import Tensor

from fairseq_plugins.console import progress
from fairseq_plugins.data.text import load_token_stream, load_training_stream
from fairseq_plugins.evaluation.dynamic_evaluation import RULES, DynamicOptions, kept_gradient_statistics
from fairseq_plugins.evaluation.scoring import (
    NonFiniteLoss,
    Perplexity,
    ScoredWindow,
    check_rows,
    exponential,
    perplexity_of,
)
from fairseq_plugins.evaluation.test_time import (
    CACHE_STARTS,
    CacheOptions,
    Component,
    ComponentOptions,
    DropoutOptions,
    EvaluatedText,
    NGramOptions,
    Passes,
    TokenScores,
    UnigramCacheOptions,
    interpolate,
    sampled_masks,
    score_tokens,
    softmax_temperature,
)
from fairseq_plugins.ngrams.model import NGramModel
from fairseq_plugins.options import UserError, check_choice, check_not_negative, check_positive, whole_number

# Flags. Their values stay text until read_methods, because a point of a grid is text, too.

FlagValues = Mapping[str, str]
"""Values of flags as they are typed, by the name of the flag without dashes."""

FLAGS: Dict[str, Tuple[str, str]] = {
    "temperature": (
        "T",
        "divide the logits of all softmaxes by T, gate included, before they are normalised; the "
        "statistics of --dynamic rms are those at temperature 1",
    ),
    "cache": (
        "WINDOW,WEIGHT,THETA",
        "mix with a continuous cache of the last WINDOW words, such as 500,0.1,1.0: words that followed hidden states "
        "like the current one, by exp(THETA h.h'). An ensemble has a cache for each model; a gated model caches the "
        "states of its base models side by side",
    ),
    "cache-start": (
        "|".join(CACHE_STARTS),
        "whether the cache is used once more than WINDOW words have passed, or from the second prediction on "
        "(default: full)",
    ),
    "unigram-cache": ("WINDOW,WEIGHT", "mix with the counts of the last WINDOW words, such as 100,0.05"),
    "ngram": (
        "ARPA,WEIGHT",
        "mix with an n-gram model in ARPA's format, as ngram train and KenLM write it; its contexts do not cross lines",
    ),
    "dynamic": (
        "|".join(RULES),
        "let the weights follow the text, a step after each segment that was scored: by gradients over their root mean "
        "squares on train, which are kept beside the checkpoint CKPT.pt, in CKPT.gradients-*.pt, or by plain "
        "gradients. All weights adapt, including those of a gated model's base models. There is no dropout. Each model "
        "of an ensemble follows its own loss",
    ),
    "dynamic-rate": (
        "RATE",
        "step size, for the gradient of a segment's mean loss (default: 5e-5 for rms; sgd needs one)",
    ),
    "dynamic-decay": (
        "DECAY",
        "part of the distance to the trained weights that each step goes back, for rms times their normalised root "
        "mean squares (default: 2e-3 for rms, 0 for sgd)",
    ),
    "dynamic-epsilon": ("EPSILON", "added to the root mean squares (default: 2e-5)"),
    "dynamic-segment": ("TOKENS", "tokens of a segment; takes the place of --window (default: 5)"),
    "dynamic-rows": ("ROWS", "rows that train is cut into for the statistics (default: 100)"),
    "dropout-samples": (
        "N",
        "average the probabilities of N passes, each with its own dropout masks. A mask lasts a window, or a token "
        "with --dropout-masks standard. Cached states and the gradients of --dynamic are computed without dropout",
    ),
    "dropout-scale": ("SCALE", "factor of the trained dropout rates in --dropout-samples (default: 0.8)"),
    "seed": ("SEED", "of the masks (default: 1)"),
}
"""Placeholder and help of every flag."""

NEEDS = {
    **{name: "dynamic" for name in FLAGS if name.startswith("dynamic-")},
    "cache-start": "cache",
    "dropout-scale": "dropout-samples",
    "seed": "dropout-samples",
}
"""Flags that need another flag."""

ROUNDING = 1e-9
"""Tolerance of a sum of weights, which depends on their order."""

LARGEST_THETA = 1e6
"""Bound of THETA in ``--cache``; already a hundredth of it selects the most similar state alone."""


def add_method_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of :data:`FLAGS`."""
    group = parser.add_argument_group(
        "test-time methods",
        "they combine, with one model and with several. Every token is scored before anything learns of it",
    )
    for name, (metavar, help) in FLAGS.items():
        group.add_argument(f"--{name}", metavar=metavar, help=help)


def given_flags(args: argparse.Namespace) -> Dict[str, str]:
    """The flags that were typed, with their values."""
    values = {name: getattr(args, name.replace("-", "_")) for name in FLAGS}
    return {name: value for name, value in values.items() if value is not None}


def read_methods(flags: FlagValues) -> Tuple[Passes, Dict[ComponentOptions, float]]:
    """The methods that flags select: how models read a text, and what is mixed with them, by weights of a sum below 1.

    Raises UserError if a value is invalid, or a flag is given without the flag that it needs.
    """
    for name in flags:
        if name in NEEDS and NEEDS[name] not in flags:
            raise UserError(f"--{name} belongs to --{NEEDS[name]}: give that as well, or leave it out")
    passes = Passes(
        temperature=_number("--temperature", flags.get("temperature", "1"), check=check_positive),
        dropout=_dropout(flags) if "dropout-samples" in flags else None,
        dynamic=_dynamic(flags) if "dynamic" in flags else None,
    )
    components = {"cache": _cache, "unigram-cache": _unigram_cache, "ngram": _ngram}
    given = [name for name in components if name in flags]
    mixed = dict(components[name](flags) for name in given)
    total = math.fsum(mixed.values())
    if total > 1 - ROUNDING:
        weights = " + ".join(f"--{name} WEIGHT" for name in given)
        raise UserError(f"{weights} is {total:g}: give less than 1, which leaves the model a weight")
    return passes, mixed


def _cache(flags: FlagValues) -> Tuple[ComponentOptions, float]:
    window, weight, theta = _parts(flags, "cache", 3)
    start = flags.get("cache-start", CACHE_STARTS[0])
    check_choice(start, CACHE_STARTS, flag="--cache-start")
    options = CacheOptions(
        window=_whole("--cache WINDOW", window),
        theta=_number("--cache THETA", theta, largest=LARGEST_THETA),
        start=start,
    )
    return options, _number("--cache WEIGHT", weight)


def _unigram_cache(flags: FlagValues) -> Tuple[ComponentOptions, float]:
    window, weight = _parts(flags, "unigram-cache", 2)
    options = UnigramCacheOptions(window=_whole("--unigram-cache WINDOW", window))
    return options, _number("--unigram-cache WEIGHT", weight)


def _ngram(flags: FlagValues) -> Tuple[ComponentOptions, float]:
    path, comma, weight = flags["ngram"].rpartition(",")
    if not comma:
        raise UserError(f"--ngram {flags['ngram']}: give it as {FLAGS['ngram'][0]}")
    if not Path(path).is_file():
        raise UserError(f"--ngram {path}: there is no such file; fairseq-plugins ngram train writes one")
    return NGramOptions(Path(path)), _number("--ngram WEIGHT", weight)


def _dropout(flags: FlagValues) -> DropoutOptions:
    return DropoutOptions(
        num_samples=_whole("--dropout-samples", flags["dropout-samples"]),
        scale=_number("--dropout-scale", flags.get("dropout-scale", "0.8")),
        seed=_whole("--seed", flags.get("seed", "1"), at_least=0),
    )


def _dynamic(flags: FlagValues) -> DynamicOptions:
    rule = check_choice(flags["dynamic"], RULES, flag="--dynamic")
    if rule == "sgd":
        for name in ("dynamic-epsilon", "dynamic-rows"):
            if name in flags:
                raise UserError(f"--{name} belongs to --dynamic rms: leave it out")
        if "dynamic-rate" not in flags:
            raise UserError("--dynamic sgd needs a --dynamic-rate: see which does best on valid by --tune")
    decay = _number("--dynamic-decay", flags.get("dynamic-decay", "2e-3" if rule == "rms" else "0"))
    if rule == "sgd" and decay > 1:
        raise UserError(f"--dynamic-decay {decay:g}: with sgd it is at most 1, which goes all the way back")
    return DynamicOptions(
        rule=rule,
        rate=_number("--dynamic-rate", flags.get("dynamic-rate", "5e-5")),
        decay=decay,
        epsilon=_number("--dynamic-epsilon", flags.get("dynamic-epsilon", "2e-5"), check=check_positive),
        segment=_whole("--dynamic-segment", flags.get("dynamic-segment", "5")),
        rows=_whole("--dynamic-rows", flags.get("dynamic-rows", "100")),
    )


def _parts(flags: FlagValues, name: str, number: int) -> List[str]:
    parts = flags[name].split(",")
    if len(parts) != number:
        raise UserError(f"--{name} {flags[name]}: give it as {FLAGS[name][0]}")
    return parts


def _number(
    flag: str,
    text: str,
    *,
    check: Callable[..., float] = check_not_negative,
    largest: float = torch.finfo(torch.float32).max,
) -> float:
    try:
        value = float(text)
    except ValueError:
        raise UserError(f"{flag} {text}: give a number") from None
    if value > largest:
        raise UserError(f"{flag} {text}: give at most {largest:g}")
    return check(value, flag=flag)


def _whole(flag: str, text: str, *, at_least: int = 1) -> int:
    try:
        return whole_number(at_least=at_least)(text)
    except UserError as error:
        raise UserError(f"{flag} {error}") from None


# Grid search.


@dataclass(frozen=True)
class TunedPoint:
    """The flags of a point of a grid, as they are typed, and its mean NLL in nats; inf where it is not finite."""

    flags: Dict[str, str]
    nll: float

    @property
    def perplexity(self) -> float:
        """exp(nll)."""
        return exponential(self.nll)


def grid_points(items: Sequence[str], *, fixed: FlagValues) -> List[Dict[str, str]]:
    """The flags of every point of a grid; ``fixed`` ones are the same for all points.

    An item is FLAG=VALUES, without the flag's dashes. Values are separated by colons. If a value has several parts,
    separated by commas, each part has its own values: ``cache=500:2000,0.05:0.1,1`` has four points.

    Raises UserError on an item that is not of this form, or that names an unknown flag, a fixed one or one twice.
    """
    axes: Dict[str, List[str]] = {}
    for item in items:
        name, equals, text = item.partition("=")
        if not equals or name not in FLAGS:
            raise UserError(f"--tune {item}: give it as FLAG=VALUES, with one of {', '.join(FLAGS)}")
        if name in axes or name in fixed:
            raise UserError(f"--tune {item}: {name} is given twice")
        axes[name] = _values(name, text)
    points = [dict(zip(axes, values)) for values in itertools.product(*axes.values())]
    return [{**fixed, **point} for point in points]


def _values(name: str, text: str) -> List[str]:
    """The values of an axis. The path of an n-gram model is one part, even with commas and colons in it."""
    parts = text.rsplit(",", 1) if name == "ngram" else text.split(",")
    choices = [[part] if name == "ngram" and i == 0 else part.split(":") for i, part in enumerate(parts)]
    return [",".join(value) for value in itertools.product(*choices)]


class Evaluator:
    """Scores splits of a folder of binarised text with trained models.

    Args:
        models: in evaluation mode, on one device, loaded from ``checkpoints``. Several are averaged as probabilities.
        dictionary: of the data.
        num_rows: number of rows that a split is cut into.
        window: tokens of a row in one forward pass.
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
    ):
        self.models = models
        self.checkpoints = checkpoints
        self.data = data
        self.dictionary = dictionary
        self.num_rows = num_rows
        self.window = window
        self._train: Optional[Tensor] = None

    def text(self, split: str) -> EvaluatedText:
        """A split. Raises UserError if it is missing or empty, or too short for the rows."""
        tokens = load_token_stream(self.data, split, self.dictionary)
        check_rows(tokens, num_rows=self.num_rows, split=split)
        return EvaluatedText(tokens, dictionary=self.dictionary, num_rows=self.num_rows)

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
        self, text: EvaluatedText, passes: Passes, components: Sequence[ComponentOptions]
    ) -> Generator[TokenScores, None, None]:
        """Scores of the text's windows in order; see :func:`~fairseq_plugins.evaluation.test_time.score_tokens`."""
        return score_tokens(
            self.models,
            text,
            passes=passes,
            components=[options.build(text) for options in components],
            mean_squares=self.statistics(passes.dynamic),
            window=self.window,
        )

    def evaluate(
        self, text: EvaluatedText, passes: Passes, mixed: Mapping[ComponentOptions, float]
    ) -> Tuple[Perplexity, float]:
        """Perplexity of a text, and predictions a second without preparations, by methods as read_methods gives them.

        Raises UserError if the models or the text do not fit the methods, or the result is not finite.
        """
        weights = list(mixed.values())
        with closing(self.score(text, passes, list(mixed))) as windows:
            start = time.perf_counter()
            perplexity = perplexity_of(
                ((-window.mixed(weights), window.target) for window in windows),
                unknown=self.dictionary.unk(),
                num_leftover_tokens=text.tokens.numel() % text.num_rows,
            )
            return perplexity, perplexity.num_tokens / (time.perf_counter() - start)

    def tune(self, text: EvaluatedText, points: Sequence[Dict[str, str]]) -> List[TunedPoint]:
        """The mean NLL of every point of a grid, the best point first. Points whose NLL is not finite come last.

        The models read the text once for all points that differ only in the components that are mixed in. Raises
        UserError if a value is invalid, or no point has a finite NLL.
        """
        groups: Dict[Passes, List[Tuple[Dict[str, str], Dict[ComponentOptions, float]]]] = defaultdict(list)
        for flags in points:
            passes, mixed = read_methods(flags)
            groups[passes].append((flags, mixed))
        tuned: List[TunedPoint] = []
        failure: Optional[NonFiniteLoss] = None
        for passes, members in progress(groups.items(), desc="tuning", unit="pass"):
            components = list(dict.fromkeys(one for _, mixed in members for one in mixed))
            weights = [[mixed.get(one, 0.0) for one in components] for _, mixed in members]
            totals = torch.zeros(len(members), dtype=torch.float64)
            num_tokens = 0
            try:
                with closing(self.score(text, passes, components)) as windows:
                    for window in windows:
                        num_tokens += window.target.numel()
                        totals += torch.stack([-window.mixed(each).sum() for each in weights]).cpu()
            except NonFiniteLoss as error:
                failure = error
                tuned += [TunedPoint(flags, math.inf) for flags, _ in members]
                continue
            means = (totals / num_tokens).nan_to_num(nan=math.inf, posinf=math.inf).tolist()
            tuned += [TunedPoint(flags, mean) for (flags, _), mean in zip(members, means)]
        if all(point.nll == math.inf for point in tuned):
            raise failure or NonFiniteLoss("--tune: no point of the grid has a finite loss: give other values")
        return sorted(tuned, key=lambda point: point.nll)

    def _training_text(self, *, num_rows: int) -> Tensor:
        if self._train is None:
            self._train = load_training_stream(self.data, self.dictionary)
        num_tokens = self._train.numel()
        if num_tokens < 2 * num_rows:
            raise UserError(
                f"--dynamic-rows {num_rows}: train has {num_tokens:,} tokens; give at most {num_tokens // 2}"
            )
        return self._train


# An n-gram model without another model.


def evaluate_ngram_model(
    model: NGramModel, tokens: Tensor, *, mixed: Sequence[Tuple[Component, float]] = ()
) -> Tuple[Perplexity, Perplexity]:
    """Perplexity over all tokens, as in the literature on n-gram models, and without the first, as for recurrent ones.

    The stream (n,) int64 has at least two tokens. End marks are predicted, and contexts do not cross lines. Components
    that are ``mixed`` in, such as an empty unigram cache, have weights; the first token has the probability of the
    model alone. Raises UserError if a token has probability zero.
    """
    log_probs = model.log_probs(tokens)
    window = ScoredWindow(
        position=0,
        inputs=tokens[None, :-1],
        target=tokens[None, 1:],
        nll=-log_probs[None, 1:],
        states=[],
        scores=[],
    )
    scores = [component.score(window) for component, _ in mixed]
    log_probs[1:] = interpolate(-window.nll, scores, [weight for _, weight in mixed])[0]
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
