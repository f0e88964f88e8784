"""Perplexity of an n-gram model without another model."""

from dataclasses import dataclass
from typing import Sequence, Tuple

from torch import Tensor

from fairseq_plugins.evaluation.scoring import Perplexity, ScoredWindow, perplexity_of
from fairseq_plugins.evaluation.test_time import Component, interpolate
from fairseq_plugins.ngrams.model import NGramModel
from fairseq_plugins.options import UserError


@dataclass(frozen=True)
class NGramPerplexity:
    """Perplexity of a stream, counted in two ways.

    Attributes:
        all_tokens: over all tokens, as in the literature on n-gram models.
        without_first: without the first token of the stream, as for recurrent models.
    """

    all_tokens: Perplexity
    without_first: Perplexity


def evaluate_ngram_model(
    model: NGramModel,
    tokens: Tensor,
    *,
    mixed: Sequence[Tuple[Component, float]] = (),
    show_progress: bool = False,
) -> NGramPerplexity:
    """Score a stream. End marks are predicted, and contexts do not cross lines.

    Args:
        model: the model.
        tokens: (n,) int64, n of at least 2.
        mixed: components that are mixed in, such as an empty unigram cache, and their weights. The first token has the
            probability of the model alone.
        show_progress: draw a bar.

    Raises:
        UserError: if a token has probability zero.
    """
    log_probs = model.log_probs(tokens, show_progress=show_progress)
    window = ScoredWindow(
        inputs=tokens[None, :-1],
        target=tokens[None, 1:],
        nll=-log_probs[None, 1:],
        log_probs=None,
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
        perplexity_of([(-log_probs[start:], tokens[start:])], tokens=tokens, unknown=model.dictionary.unk(), num_rows=1)
        for start in (0, 1)
    )
    return NGramPerplexity(all_tokens=all_tokens, without_first=without_first)
