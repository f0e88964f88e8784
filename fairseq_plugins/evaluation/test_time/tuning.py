"""Search for the values of test-time methods that do best on a text."""

import itertools
import math
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass
from typing import Callable, Dict, Generator, List, Optional, Sequence, Tuple

import torch
from torch import Tensor
from tqdm import tqdm

from fairseq_plugins.evaluation.ensemble import NonFiniteLoss
from fairseq_plugins.evaluation.perplexity import exponential
from fairseq_plugins.evaluation.test_time.flags import FLAGS, FlagValues, read_methods
from fairseq_plugins.evaluation.test_time.methods import ComponentOptions, Methods, Passes
from fairseq_plugins.evaluation.test_time.token_scores import TokenScores

ScoreTokens = Callable[[Passes, Sequence[ComponentOptions]], Generator[TokenScores, None, None]]
"""Reads the text that is tuned on by these methods."""


@dataclass(frozen=True)
class TunedPoint:
    """A point of a grid.

    Attributes:
        flags: all that are set there, as they are typed.
        nll: mean over the tokens, in nats; infinite where it is not finite, such as where the weights diverged.
    """

    flags: Dict[str, str]
    nll: float

    @property
    def perplexity(self) -> float:
        """exp(nll), infinite where that overflows."""
        return exponential(self.nll)


def grid_points(items: Sequence[str], *, fixed: FlagValues) -> List[Dict[str, str]]:
    """The flags of every point of a grid.

    An item is FLAG=VALUES, without the flag's dashes. Values are parted by colons; where a value has several parts,
    parted by commas, each part has its own: ``cache=500:2000,0.05:0.1,1`` has four points.

    Args:
        items: what varies.
        fixed: flags that are the same everywhere.

    Raises:
        ValueError: on an item that is not of this form, or that names an unknown flag, a fixed one or one twice.
    """
    axes: Dict[str, List[str]] = {}
    for item in items:
        name, equals, text = item.partition("=")
        if not equals or name not in FLAGS:
            raise ValueError(f"--tune {item}: give it as FLAG=VALUES, with one of {', '.join(FLAGS)}")
        if name in axes or name in fixed:
            raise ValueError(f"--tune {item}: {name} is given twice")
        axes[name] = _values(name, text)
    points = [dict(zip(axes, values)) for values in itertools.product(*axes.values())]
    return [{**fixed, **point} for point in points]


def tune(points: Sequence[Dict[str, str]], score: ScoreTokens, *, show_progress: bool) -> List[TunedPoint]:
    """The mean NLL of every point, the best one first.

    The models read the text once for all points that differ in what is mixed alone. Points whose NLL is not finite come
    last.

    Args:
        points: flags, as of :func:`grid_points`.
        score: reads the text.
        show_progress: draw a bar.

    Raises:
        ValueError: if values make no sense, or no point has a finite NLL.
    """
    groups: Dict[Passes, List[Tuple[Dict[str, str], Methods]]] = defaultdict(list)
    for flags in points:
        methods = read_methods(flags)
        groups[methods.passes].append((flags, methods))
    tuned: List[TunedPoint] = []
    failure: Optional[NonFiniteLoss] = None
    for passes, members in tqdm(groups.items(), desc="tuning", unit="pass", disable=not show_progress):
        components = list(dict.fromkeys(one for _, methods in members for one in methods.components))
        totals = torch.zeros(len(members), dtype=torch.float64)
        num_tokens = 0
        try:
            with closing(score(passes, components)) as windows:
                for window in windows:
                    num_tokens += window.target.numel()
                    totals += torch.stack([_nll(window, methods, components) for _, methods in members]).cpu()
        except NonFiniteLoss as error:
            failure = error
            tuned += [TunedPoint(flags, math.inf) for flags, _ in members]
            continue
        means = (totals / num_tokens).nan_to_num(nan=math.inf, posinf=math.inf).tolist()
        tuned += [TunedPoint(flags, mean) for (flags, _), mean in zip(members, means)]
    if all(point.nll == math.inf for point in tuned):
        raise failure or NonFiniteLoss("--tune: no point of the grid has a finite loss: give other values")
    return sorted(tuned, key=lambda point: point.nll)


def _nll(window: TokenScores, methods: Methods, components: Sequence[ComponentOptions]) -> Tensor:
    """Summed NLL of a window, where all ``components`` were scored."""
    weights = dict(methods.mixed)
    return -window.mixed([weights.get(one, 0.0) for one in components]).sum()


def _values(name: str, text: str) -> List[str]:
    """The values of an axis; the file of an n-gram model is one part, whatever it holds."""
    parts = text.rsplit(",", 1) if name == "ngram" else text.split(",")
    choices = [[part] if name == "ngram" and place == 0 else part.split(":") for place, part in enumerate(parts)]
    return [",".join(value) for value in itertools.product(*choices)]
