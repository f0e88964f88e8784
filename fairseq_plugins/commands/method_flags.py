"""Flags of test-time methods, and the grid of their values that --tune tries.

Values stay text until :func:`read_methods`, because a point of a grid is text, too.
"""

import argparse
import itertools
import math
from pathlib import Path
from typing import Callable, Dict, List, Mapping, Sequence, Tuple

import torch

from fairseq_plugins.evaluation.dynamic_evaluation import RULES, DynamicOptions
from fairseq_plugins.evaluation.methods import (
    CACHE_STARTS,
    Component,
    ContinuousCache,
    DropoutOptions,
    Methods,
    NGrams,
    Passes,
    UnigramCache,
)
from fairseq_plugins.options import UserError, check_choice, check_not_negative, check_positive, whole_number

FlagValues = Mapping[str, str]
"""Values of flags as they are typed, by the name of the flag without dashes."""

FLAGS: Dict[str, Tuple[str, str]] = {
    "temperature": (
        "T",
        "divide the logits of all softmaxes by T, gate included, before they are normalised; the "
        "statistics of --dynamic rms are computed at temperature 1",
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
        "adapt the weights to the text by a gradient step after each scored segment. rms divides gradients by their "
        "root mean squares on train, which are kept beside the checkpoint CKPT.pt, in CKPT.gradients-*.pt. sgd takes "
        "plain gradients. All weights adapt, also of a gated model's base models. There is no dropout. Each model of "
        "an ensemble follows its own loss",
    ),
    "dynamic-rate": (
        "RATE",
        "step size, for the gradient of a segment's mean loss (default: 5e-5 for rms; sgd needs one)",
    ),
    "dynamic-decay": (
        "DECAY",
        "share of the distance to the trained weights that each step takes back; rms multiplies it by the normalised "
        "root mean squares (default: 2e-3 for rms, 0 for sgd)",
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
    values = {name: getattr(args, name.replace("-", "_"), None) for name in FLAGS}
    return {name: value for name, value in values.items() if value is not None}


def read_methods(flags: FlagValues) -> Methods:
    """The methods that flags select.

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
        raise UserError(f"{weights} is {total:g}: give less than 1, so that the model keeps a weight")
    return Methods(passes, mixed)


def _cache(flags: FlagValues) -> Tuple[Component, float]:
    window, weight, theta = _parts(flags, "cache", 3)
    start = flags.get("cache-start", CACHE_STARTS[0])
    check_choice(start, CACHE_STARTS, flag="--cache-start")
    cache = ContinuousCache(
        window=_whole("--cache WINDOW", window),
        theta=_number("--cache THETA", theta, largest=LARGEST_THETA),
        start=start,
    )
    return cache, _number("--cache WEIGHT", weight)


def _unigram_cache(flags: FlagValues) -> Tuple[Component, float]:
    window, weight = _parts(flags, "unigram-cache", 2)
    cache = UnigramCache(window=_whole("--unigram-cache WINDOW", window))
    return cache, _number("--unigram-cache WEIGHT", weight)


def _ngram(flags: FlagValues) -> Tuple[Component, float]:
    path, comma, weight = flags["ngram"].rpartition(",")
    if not comma:
        raise UserError(f"--ngram {flags['ngram']}: give it as {FLAGS['ngram'][0]}")
    if not Path(path).is_file():
        raise UserError(f"--ngram {path}: there is no such file; fairseq-plugins ngram train writes one")
    return NGrams(Path(path)), _number("--ngram WEIGHT", weight)


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
            raise UserError("--dynamic sgd needs a --dynamic-rate: choose it on valid by --tune")
    decay = _number("--dynamic-decay", flags.get("dynamic-decay", "2e-3" if rule == "rms" else "0"))
    if rule == "sgd" and decay > 1:
        raise UserError(f"--dynamic-decay {decay:g}: with sgd give at most 1, which takes back the whole distance")
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
