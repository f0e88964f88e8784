"""Perplexity of an n-gram model alone."""

from dataclasses import dataclass

from torch import Tensor

from fairseq_plugins.evaluation.perplexity import Perplexity
from fairseq_plugins.ngrams.ngram_model import NGramModel


@dataclass(frozen=True)
class NGramPerplexity:
    """Two counts of one stream.

    Attributes:
        all_tokens: of every token, as the literature on n-gram models counts.
        without_first: of every token but the first of the stream, as a recurrent model's is counted.
    """

    all_tokens: Perplexity
    without_first: Perplexity


def evaluate_ngram_model(model: NGramModel, tokens: Tensor, *, show_progress: bool = False) -> NGramPerplexity:
    """Score a stream; end marks are predicted, contexts do not cross lines.

    Args:
        model: the model.
        tokens: (n,) int64, n of at least 2.
        show_progress: draw a bar.

    Raises:
        ValueError: if a token has probability zero.
    """
    log_probs = model.log_probs(tokens, show_progress=show_progress)
    impossible = log_probs.isinf()
    if bool(impossible.any()):
        raise ValueError(
            f"{int(impossible.sum()):,} of {len(tokens):,} tokens, such as "
            f"'{model.dictionary[int(tokens[impossible][0])]}', have probability zero: use a model that has all words "
            "of the text, or <unk>"
        )
    unknown = tokens == model.dictionary.unk()
    return NGramPerplexity(
        all_tokens=_perplexity(log_probs, unknown), without_first=_perplexity(log_probs[1:], unknown[1:])
    )


def _perplexity(log_probs: Tensor, unknown: Tensor) -> Perplexity:
    return Perplexity(
        num_tokens=len(log_probs),
        nll=-float(log_probs.mean()),
        num_unknown=int(unknown.sum()),
        num_leftover_tokens=0,
    )
