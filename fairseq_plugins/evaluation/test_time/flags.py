"""The flags of test-time methods, read as text: what is given, what a grid holds, and what makes no sense."""

import argparse
import math
import re
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Tuple

import torch

from fairseq_plugins.evaluation.test_time.continuous_cache import CACHE_STARTS
from fairseq_plugins.evaluation.test_time.dropout_samples import DropoutOptions
from fairseq_plugins.evaluation.test_time.dynamic_evaluation import RULES, DynamicOptions
from fairseq_plugins.evaluation.test_time.methods import (
    CacheOptions,
    ComponentOptions,
    Methods,
    NGramOptions,
    Passes,
    UnigramCacheOptions,
)
from fairseq_plugins.flags.values import check_choice

FlagValues = Mapping[str, str]
"""Values of flags as they are typed, by the flag's name without its dashes."""

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
        "mix with an n-gram model in ARPA's format, as train_ngram and kenlm write it; its contexts do not cross lines",
    ),
    "dynamic": (
        "|".join(RULES),
        "let the weights follow the text, a step after each segment that was scored: by gradients over their root mean "
        "squares on train, which are kept beside the checkpoint CKPT.pt, in CKPT.gradients-*.pt, or by plain "
        "gradients. All weights adapt, those of a gated model's base models, too; nothing is dropped. Models of an "
        "ensemble each follow their own loss",
    ),
    "dynamic-rate": ("RATE", "step size of the mean loss of a segment (default: 5e-5 for rms; sgd has none)"),
    "dynamic-decay": (
        "DECAY",
        "how far a step goes back to the trained weights, for rms times their normalised root mean squares (default: "
        "2e-3 for rms, 0 for sgd)",
    ),
    "dynamic-epsilon": ("EPSILON", "added to the root mean squares (default: 2e-5)"),
    "dynamic-segment": ("TOKENS", "tokens of a segment; takes the place of --window (default: 5)"),
    "dynamic-rows": ("ROWS", "rows that train is cut into for the statistics (default: 100)"),
    "dropout-samples": (
        "N",
        "mean of the probabilities over N passes with dropout masks of their own, a mask a window, or a token with "
        "--dropout-masks standard. The states that a cache keeps and the gradients of --dynamic are those without "
        "dropout",
    ),
    "dropout-scale": ("SCALE", "factor of the trained dropout rates for them (default: 0.8)"),
    "seed": ("SEED", "of the masks (default: 1)"),
}
"""Placeholder and help of every flag."""

NEEDS = {
    **{name: "dynamic" for name in FLAGS if name.startswith("dynamic-")},
    "cache-start": "cache",
    "dropout-scale": "dropout-samples",
    "seed": "dropout-samples",
}
"""The flag that another belongs to."""


ROUNDING = 1e-9
"""Weights that are 1 together but for this are 1 in another order."""

LARGEST_THETA = 1e6
"""Of ``--cache``; a hundredth of it takes the most similar state alone."""


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


def read_methods(flags: FlagValues) -> Methods:
    """The methods that flags ask for.

    Raises:
        ValueError: if a value makes no sense, or a flag stands without the one that it belongs to.
    """
    for name in flags:
        if name in NEEDS and NEEDS[name] not in flags:
            raise ValueError(f"--{name} belongs to --{NEEDS[name]}: give that as well, or leave it out")
    passes = Passes(
        temperature=_number(flags, "temperature", "1", above=0),
        dropout=_dropout(flags),
        dynamic=_dynamic(flags),
    )
    mixed = [one for one in (_cache(flags), _unigram_cache(flags), _ngram(flags)) if one is not None]
    total = math.fsum(weight for _, weight in mixed)
    if total > 1 - ROUNDING:
        raise ValueError(f"the weights of what is mixed in are {total:g} together: leave the model more than nothing")
    return Methods(passes=passes, mixed=tuple(mixed))


def _cache(flags: FlagValues) -> Optional[Tuple[ComponentOptions, float]]:
    if "cache" not in flags:
        return None
    window, weight, theta = _parts(flags, "cache", 3)
    start = flags.get("cache-start", CACHE_STARTS[0])
    check_choice(start, CACHE_STARTS, flag="--cache-start")
    options = CacheOptions(
        window=_whole("--cache WINDOW", window),
        theta=_real("--cache THETA", theta, at_least=0, at_most=LARGEST_THETA),
        start=start,
    )
    return options, _weight("cache", weight)


def _unigram_cache(flags: FlagValues) -> Optional[Tuple[ComponentOptions, float]]:
    if "unigram-cache" not in flags:
        return None
    window, weight = _parts(flags, "unigram-cache", 2)
    options = UnigramCacheOptions(window=_whole("--unigram-cache WINDOW", window))
    return options, _weight("unigram-cache", weight)


def _ngram(flags: FlagValues) -> Optional[Tuple[ComponentOptions, float]]:
    if "ngram" not in flags:
        return None
    path, comma, weight = flags["ngram"].rpartition(",")
    if not comma:
        raise ValueError(f"--ngram {flags['ngram']}: give it as {FLAGS['ngram'][0]}")
    if not Path(path).is_file():
        raise ValueError(f"--ngram {path}: there is no such file; train_ngram writes one")
    return NGramOptions(Path(path)), _weight("ngram", weight)


def _dropout(flags: FlagValues) -> Optional[DropoutOptions]:
    if "dropout-samples" not in flags:
        return None
    return DropoutOptions(
        num_samples=_whole("--dropout-samples", flags["dropout-samples"]),
        scale=_number(flags, "dropout-scale", "0.8", at_least=0),
        seed=_whole("--seed", flags.get("seed", "1"), at_least=0),
    )


def _dynamic(flags: FlagValues) -> Optional[DynamicOptions]:
    if "dynamic" not in flags:
        return None
    rule = check_choice(flags["dynamic"], RULES, flag="--dynamic")
    if rule == "sgd":
        for name in ("dynamic-epsilon", "dynamic-rows"):
            if name in flags:
                raise ValueError(f"--{name} belongs to --dynamic rms: leave it out")
        if "dynamic-rate" not in flags:
            raise ValueError("--dynamic sgd needs a --dynamic-rate: see which does best on valid by --tune")
    decay = _number(flags, "dynamic-decay", "2e-3" if rule == "rms" else "0", at_least=0)
    if rule == "sgd" and decay > 1:
        raise ValueError(f"--dynamic-decay {decay:g}: with sgd it is at most 1, which goes all the way back")
    return DynamicOptions(
        rule=rule,
        rate=_number(flags, "dynamic-rate", "5e-5", at_least=0),
        decay=decay,
        epsilon=_number(flags, "dynamic-epsilon", "2e-5", above=0),
        segment=_whole("--dynamic-segment", flags.get("dynamic-segment", "5")),
        rows=_whole("--dynamic-rows", flags.get("dynamic-rows", "100")),
    )


def _parts(flags: FlagValues, name: str, number: int) -> List[str]:
    parts = flags[name].split(",")
    if len(parts) != number:
        raise ValueError(f"--{name} {flags[name]}: give it as {FLAGS[name][0]}")
    return parts


def _number(
    flags: FlagValues, name: str, default: str, *, at_least: float = -math.inf, above: float = -math.inf
) -> float:
    return _real(f"--{name}", flags.get(name, default), at_least=at_least, above=above)


def _weight(name: str, text: str) -> float:
    weight = _real(f"--{name} WEIGHT", text, at_least=0)
    if weight >= 1:
        raise ValueError(f"--{name} WEIGHT {text}: a weight is at least 0 and below 1")
    return weight


def _real(
    what: str,
    text: str,
    *,
    at_least: float = -math.inf,
    above: float = -math.inf,
    at_most: float = torch.finfo(torch.float32).max,
) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{what} {text}: give a number")
    if value < at_least or value <= above:
        raise ValueError(
            f"{what} {text}: give {'at least' if value < at_least else 'more than'} "
            f"{at_least if value < at_least else above:g}"
        )
    if value > at_most:
        raise ValueError(f"{what} {text}: give at most {at_most:g}")
    return value


def _whole(what: str, text: str, *, at_least: int = 1) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < at_least:
        raise ValueError(f"{what} {text}: give a whole number of at least {at_least}")
    return int(text)
