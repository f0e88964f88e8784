"""Headlines and summaries: read, and scored by ROUGE."""

from pathlib import Path
from typing import List, Optional, Sequence

from fairseq_plugins.data.text_files import name_of, read_lines
from fairseq_plugins.evaluation.translation.generated_text import (
    check_pairs,
    check_words,
    read_generated,
)
from fairseq_plugins.evaluation.translation.raw_references import (
    check_blank_references,
    check_raw_references,
    compare_with_references,
)
from fairseq_plugins.scoring.rouge import RougeScore, RougeSettings, check_tokens, score_corpus, without_escapes


def read_headlines(*paths: Path, references: Sequence[Path] = ()) -> List[str]:
    """The best hypotheses that ``fairseq-generate`` wrote, without the escapes of the Moses tokeniser.

    Args:
        paths: files that are read as one; ``-`` is the standard input.
        references: files of raw text, one of which has the targets that were written beside the hypotheses.

    Raises:
        ValueError: if the files hold no hypothesis, sentences are missing, or the targets are those of no reference.
    """
    generated = read_generated(*paths)
    texts = {str(reference): read_lines(reference) for reference in references}
    for reference, lines in texts.items():
        check_pairs(generated.hypotheses, lines, name=name_of(*paths), reference_name=reference)
    if texts:
        nearest = min(texts, key=lambda name: compare_with_references(generated.references, texts[name]).num_other)
        check_raw_references(generated.references, texts[nearest], name=name_of(*paths), reference_name=nearest)
    return [without_escapes(line) for line in generated.hypotheses]


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
        num_processes: that score; None takes one for each 500 texts, and never more than there are cores to use.
        show_progress: draw a bar.

    Raises:
        ValueError: on unequal numbers of lines, subword marks, no word, another script, or a sentence whose references
            are all blank, with the file and line.
    """
    texts = [read_lines(reference) for reference in references]
    for lines, reference in zip(texts, references):
        check_pairs(hypotheses, lines, name=name, reference_name=str(reference))
    check_words(hypotheses, name=name, references=["".join(lines) for lines in zip(*texts)])
    check_blank_references(["".join(lines) for lines in zip(*texts)], name=name_of(*references))
    check_tokens(list(zip(*texts)), settings)
    return score_corpus(
        hypotheses,
        list(zip(*texts)),
        settings,
        num_processes=num_processes,
        show_progress=show_progress,
    )
