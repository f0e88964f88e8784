"""ROUGE for ``fairseq-generate --scoring rouge``."""

import logging
from dataclasses import dataclass, field
from typing import List

from fairseq.dataclass import FairseqDataclass
from fairseq.scoring import BaseScorer, register_scorer

from fairseq_plugins.flags.choices import OnOff, choices
from fairseq_plugins.scoring.rouge import (
    TOKENIZERS,
    RougeScore,
    RougeSettings,
    check_tokens,
    score_corpus,
    without_escapes,
)
from fairseq_plugins.scoring.unknown_words import NO_HYPOTHESIS_HAS_THIS, UNKNOWN_REFERENCE

logger = logging.getLogger(__name__)

RougeTokenizer = choices(TOKENIZERS)


@dataclass
class RougeScorerConfig(FairseqDataclass):
    """Flags of ``--scoring rouge``."""

    rouge_stemming: OnOff = field(
        default="on", metadata={"help": "whether English words are stemmed, as ROUGE-1.5.5 -m does"}
    )
    rouge_tokenizer: RougeTokenizer = field(
        default="rouge",
        metadata={"help": "rouge: words of a-z and 0-9, as ROUGE-1.5.5; unicode: words of any script"},
    )
    rouge_max_bytes: int = field(
        default=0, metadata={"help": "cut texts after so many bytes, as ROUGE-1.5.5 -b (75 in DUC 2004; 0: no limit)"}
    )
    rouge_max_words: int = field(
        default=0, metadata={"help": "cut texts after so many words, as ROUGE-1.5.5 -l (0: no limit)"}
    )


@register_scorer("rouge", dataclass=RougeScorerConfig)
class RougeScorer(BaseScorer):
    """ROUGE-1, -2 and -L of the hypotheses that the host hands over.

    The host's references lack words that are not in the dictionary; they count as words that no hypothesis has. To
    compare with other work, score against the raw references with ``python -m fairseq_plugins.cli.evaluate_rouge``.
    """

    def __init__(self, cfg: RougeScorerConfig):
        super().__init__(cfg)
        self.settings = RougeSettings(
            stemming=str(cfg.rouge_stemming),
            tokenizer=str(cfg.rouge_tokenizer),
            max_bytes=cfg.rouge_max_bytes,
            max_words=cfg.rouge_max_words,
        )

    def add_string(self, ref: str, pred: str) -> None:
        ref = ref.replace(UNKNOWN_REFERENCE, NO_HYPOTHESIS_HAS_THIS)
        super().add_string(without_escapes(ref), without_escapes(pred))

    def scores(self) -> List[RougeScore]:
        """Of all pairs so far; references of another script are warned of, for the decoding would be lost."""
        try:
            check_tokens([[reference] for reference in self.ref], self.settings)
        except ValueError as error:
            logger.warning(f"{error}: --rouge-tokenizer unicode")
        return score_corpus(self.pred, [[reference] for reference in self.ref], self.settings)

    def score(self) -> float:
        """ROUGE-L F1, 0 to 100."""
        return self.scores()[-1].f1

    def result_string(self) -> str:
        parts = [
            f"{item.metric} F1 {item.f1:.2f} (P {item.precision:.2f}, R {item.recall:.2f})" for item in self.scores()
        ]
        return f"{', '.join(parts)} {self.settings.signature(num_references=1, references='dictionary')}"
