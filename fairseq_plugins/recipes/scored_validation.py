"""Validation that decodes, so that the log and the curves have BLEU or ROUGE by epoch."""

from pathlib import Path
from typing import Dict

from fairseq_plugins.evaluation.text.subwords import SubwordNMT, subword_kind
from fairseq_plugins.models.presets import Value

JOINING_FLAG = "eval-scorer-remove-bpe"


def scored_validation(metric: str) -> Dict[str, Value]:
    """Flags of ``fairseq-train`` for a training on subwords; it stays the same to the bit.

    Args:
        metric: a value of ``--eval-scorer``; texts for BLEU and chrF are detokenised.
    """
    detokenised = {"eval-scorer-detok": "moses"} if metric in ("bleu", "chrf") else {}
    return {
        "task": "scored_translation",
        "eval-scorer": metric,
        "eval-scorer-args": '{"beam": 1, "max_len_a": 1.2, "max_len_b": 10}',
        JOINING_FLAG: True,
        **detokenised,
    }


def joined_subwords(data: Path) -> Value:
    """The value of ``--eval-scorer-remove-bpe`` for a folder's text; True for ``@@``, which needs none.

    Raises:
        ValueError: if data-prep left subwords of several kinds there.
    """
    kind = subword_kind(data)
    return True if kind == SubwordNMT.kind else kind
