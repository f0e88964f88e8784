"""Weights of a log-linear model that were tuned, and the file that keeps them."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Mapping, Sequence

from fairseq_plugins.data.file_digest import file_digest
from fairseq_plugins.evaluation.rescoring.nbest_features import LENGTH, LIST_SCORE
from fairseq_plugins.scoring.corpus_metrics import CORPUS_METRICS


@dataclass(frozen=True, kw_only=True)
class TunedWeights:
    """Weights by feature, and what knows the models again.

    Attributes:
        metric: that they were tuned to, a name of :data:`CORPUS_METRICS`.
        weights: by the names of features: the list's score, the length, and checkpoints by their paths.
        digests: of the checkpoints' files, by the same paths.
    """

    metric: str
    weights: Dict[str, float]
    digests: Dict[str, str]

    def of_models(self, given: Mapping[str, str]) -> List[float]:
        """The weights of the list's score, of the length, and of checkpoints, wherever these are now.

        Args:
            given: digests of the checkpoints' files, by their paths, as of :func:`distinct_digests`.

        Raises:
            ValueError: if they are not the checkpoints that the weights were tuned for.
        """
        tuned = {digest: self.weights[path] for path, digest in self.digests.items()}
        if strangers := [path for path, digest in given.items() if digest not in tuned]:
            raise ValueError(f"{strangers[0]} is none of the models that the weights were tuned for: {self._models}")
        if missing := [path for path, digest in self.digests.items() if digest not in given.values()]:
            raise ValueError(f"the weights were tuned for {self._models}: --path lacks {missing[0]}")
        return [self.weights[LIST_SCORE], self.weights[LENGTH], *(tuned[digest] for digest in given.values())]

    @property
    def _models(self) -> str:
        return ", ".join(self.digests)


def tuned_weights(metric: str, weights: Sequence[float], *, digests: Mapping[str, str]) -> TunedWeights:
    """Weights of the list's score, of the length, and of checkpoints, whose digests stand by their paths."""
    weights_by_name = dict(zip([LIST_SCORE, LENGTH, *digests], weights))
    return TunedWeights(metric=metric, weights=weights_by_name, digests=dict(digests))


def distinct_digests(paths: Sequence[str]) -> Dict[str, str]:
    """Digests of the checkpoints' files, by which weights know them.

    Raises:
        ValueError: if two hold the same, such as the last checkpoint where it is the best one.
    """
    digests: Dict[str, str] = {}
    for path in paths:
        digest = file_digest(Path(path))
        same = next((other for other, one in digests.items() if one == digest), None)
        if same is not None:
            raise ValueError(f"--path: {same} and {path} hold the same model: give one of them")
        digests[path] = digest
    return digests


def read_weights(path: Path) -> TunedWeights:
    """From a file that ``rescore_nbest --tune`` wrote.

    Raises:
        ValueError: if the file is missing or of another form.
    """
    if not path.is_file():
        raise ValueError(f"{path} does not exist: write it with --tune")
    try:
        content = json.loads(path.read_text("utf-8"))
        weights: Dict[str, float] = {str(name): float(weight) for name, weight in content["weights"].items()}
        digests: Dict[str, str] = {str(name): str(digest) for name, digest in content["digests"].items()}
        if not all(map(math.isfinite, weights.values())):
            raise ValueError("a weight is no number")
        if weights.keys() != {LIST_SCORE, LENGTH, *digests}:
            raise ValueError("a weight belongs to nothing")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} holds no weights: write it with --tune") from error
    if content.get("metric") not in CORPUS_METRICS:
        raise ValueError(f"{path} names no metric that its weights were tuned to: write it with --tune")
    return TunedWeights(metric=content["metric"], weights=weights, digests=digests)
