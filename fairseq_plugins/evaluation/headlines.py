"""Headlines and summaries: read, and scored by ROUGE."""

from pathlib import Path
from typing import List, Optional

from fairseq_plugins.evaluation.generated_text import check_pairs, check_words, read_generated, read_lines
from fairseq_plugins.scoring.rouge import RougeScore, RougeSettings, check_tokens, score_corpus, without_escapes


def read_headlines(path: Path) -> List[str]:
    """The best hypotheses of ``fairseq-generate``, without the escapes of the Moses tokeniser.

    Raises:
        ValueError: if the file holds no hypothesis, or sentences are missing.
    """
    return [without_escapes(line) for line in read_generated(path).hypotheses]


def score_headlines(
    hypotheses: List[str],
    path: Path,
    references: List[Path],
    settings: RougeSettings,
    *,
    num_processes: Optional[int] = None,
    show_progress: str = "off",
) -> List[RougeScore]:
    """ROUGE of the hypotheses that ``path`` holds against files of references, after checks.

    Raises:
        ValueError: on unequal numbers of lines, subword marks, no word or another script, with the file and line.
    """
    texts = [read_lines(reference) for reference in references]
    for lines, name in zip(texts, references):
        check_pairs(hypotheses, lines, name=str(path), reference_name=str(name))
    check_words(hypotheses, name=str(path))
    check_tokens(list(zip(*texts)), settings)
    return score_corpus(
        hypotheses,
        list(zip(*texts)),
        settings,
        num_processes=num_processes,
        show_progress=show_progress,
    )
