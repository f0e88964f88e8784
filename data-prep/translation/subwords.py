"""Byte pair encoding, learnt jointly on both languages: subword-nmt or sentencepiece."""

import io
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import sentencepiece
from subword_nmt import apply_bpe, learn_bpe

from .errors import DataError, note
from .lines import progress

FILES = {"subword-nmt": "bpe.codes", "sentencepiece": "sentencepiece.bpe.model"}


def learn(kind: str, lines: Iterable[str], num_merges: int, path: Path) -> None:
    """Learn ``num_merges`` merges on tokenised lines and write them to ``path``."""
    words = Counter(word for line in lines for word in line.split(" ") if word)
    if not any(len(word) > 1 for word in words):
        raise DataError("the training text has no word of two characters: there is nothing to merge")
    {"subword-nmt": _learn_subword_nmt, "sentencepiece": _learn_sentencepiece}[kind](words, num_merges, path)


def load(kind: str, path: Path) -> Callable[[str], str]:
    """A function from a tokenised line to its subwords with one space between them."""
    if kind == "subword-nmt":
        with open(path, encoding="utf-8", newline="\n") as file:
            return apply_bpe.BPE(file).segment
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return lambda line: " ".join(processor.encode(line, out_type=str))


def _learn_subword_nmt(words: Counter, num_merges: int, path: Path) -> None:
    learn_bpe.tqdm = lambda items: progress(items, desc="learning merges", unit=" merges")
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        learn_bpe.learn_bpe((f"{word} {count}" for word, count in words.items()), file, num_merges, is_dict=True)
    with open(path, encoding="utf-8", newline="\n") as file:
        learnt = sum(1 for _ in file) - 1
    if learnt < num_merges:
        note(f"only {learnt} merges could be learnt of {num_merges}")


def _learn_sentencepiece(words: Counter, num_merges: int, path: Path) -> None:
    characters = set().union(*words) | {"\u2581"}
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(f"{word}\t{count}" for word, count in words.items()),
            input_format="tsv",
            model_writer=model,
            model_type="bpe",
            vocab_size=num_merges + len(characters) + 3,  # <unk>, <s>, </s>
            hard_vocab_limit=False,
            character_coverage=1.0,
            normalization_rule_name="identity",
            split_by_unicode_script=False,  # or &apos; would be three pieces at least
            split_by_number=False,
            max_sentencepiece_length=100,
            max_sentence_length=1_000_000,
            minloglevel=1,
        )
    except RuntimeError as error:
        raise DataError(f"sentencepiece failed: {error}") from None
    path.write_bytes(model.getvalue())
