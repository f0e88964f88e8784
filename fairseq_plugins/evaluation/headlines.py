"""Headlines and summaries: read, and scored by ROUGE."""

from pathlib import Path
from typing import List, Optional, Sequence

from fairseq_plugins.evaluation.generated_text import check_pairs, check_words, read_generated, read_lines
from fairseq_plugins.scoring.rouge import RougeScore, RougeSettings, check_tokens, score_corpus, without_escapes


def read_headlines(*paths: Path) -> List[str]:
    """The best hypotheses that ``fairseq-generate`` wrote, without the escapes of the Moses tokeniser.

    Raises:
        ValueError: if the files hold no hypothesis, or sentences are missing.
    """
    return [without_escapes(line) for line in read_generated(*paths).hypotheses]


def score_headlines(
    hypotheses: List[str],
    name: str,
    references: Sequence[Path],
    settings: RougeSettings,
    *,
    num_processes: Optional[int] = None,
    show_progress: bool = False,
) -> List[RougeScore]:
    """ROUGE of hypotheses against files of references, a reference a line.

    Args:
        hypotheses: in the order of the references.
        name: of the hypotheses, in messages.
        references: several for each hypothesis, where several files are given.
        settings: of the score.
        num_processes: that score; None takes all cores, one for fewer than 1,000 texts.
        show_progress: draw a bar.

    Raises:
        ValueError: on unequal numbers of lines, subword marks, no word or another script, with the file and line.
    """
    texts = [read_lines(reference) for reference in references]
    for lines, reference in zip(texts, references):
        check_pairs(hypotheses, lines, name=name, reference_name=str(reference))
    check_words(hypotheses, name=name)
    check_tokens(list(zip(*texts)), settings)
    return score_corpus(
        hypotheses,
        list(zip(*texts)),
        settings,
        num_processes=num_processes,
        show_progress=show_progress,
    )
