"""Subwords, learnt jointly on both sides of train, and the step that splits every split into them."""

import io
import itertools
import shutil
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import sentencepiece
from subword_nmt import apply_bpe, learn_bpe

from .lines import (
    ESCAPES,
    LONGEST_WORD,
    DataError,
    map_in_order,
    note,
    on_each_side,
    progress,
    read_lines,
    read_rows,
    split_in_stretches,
    stretches,
    write_lines,
    write_rows,
)
from .steps import splits_of, write_splits

MARK = "\u2581"  # sentencepiece's space
COUNTED_WORDS = 4_000_000  # word types that are counted at a time: at most 1 GB
LEARNT_WORDS = 400_000  # word types, the most frequent ones, that subwords are learnt from
UNMERGED = "\ue000"  # a character that is in no merge
CACHED_WORDS = 100_000  # word types whose subwords a process caches


MODEL_FILES = {
    "bpe": "bpe.codes",
    "sentencepiece": "sentencepiece.bpe.model",
    "sentencepiece-unigram": "sentencepiece.unigram.model",
}
PROGRAMS = {kind: "subword-nmt" if kind == "bpe" else kind for kind in MODEL_FILES}


def learn(
    kind: str,
    lines: Iterable[str],
    num_merges: int,
    path: Path,
    symbols: tuple[str, ...] = (),
    escapes: Sequence[str] = ESCAPES,
) -> None:
    """Learn ``num_merges`` merges on lines and write them to ``path``. No model splits ``symbols``.

    Moses' ``escapes``, such as ``&amp;``, are not split either. They stand for one character, and the pieces of an
    escape that train lacks may be missing in the dictionary. The rule is part of the model's file, so that commands of
    fairseq follow it. subword-nmt keeps the pieces of an escape that is so rare in train that it is split there.

    For the unigram model, ``num_merges`` is the number of subwords of two and more characters, as merges are. Raw text
    has no ``escapes``: models of sentencepiece then keep letters, digits and punctuation apart.
    """
    words = count_words(lines)
    for symbol in symbols:
        words.pop(symbol, None)
    if len(words) > LEARNT_WORDS:
        frequent = Counter(dict(words.most_common(LEARNT_WORDS)))
        coverage = frequent.total() / words.total()
        note(f"learning from the {LEARNT_WORDS} most frequent of {len(words)} words, {coverage:.2%} of the text")
        words = frequent
    if not any(len(word) > 1 for word in words):
        raise DataError("the training text has no word of two characters: there is nothing to merge")
    if kind == "bpe":
        _learn_subword_nmt(words, num_merges, path, symbols, escapes)
    else:
        model = "unigram" if kind.endswith("unigram") else "bpe"
        _learn_sentencepiece(words, num_merges, path, symbols, escapes, model)


def count_words(lines: Iterable[str]) -> Counter:
    """Counts of words. Whenever there are more than COUNTED_WORDS types, the rarest so far are dropped."""
    words: Counter = Counter()
    rare = 0
    for line in lines:
        words.update(line.split())
        while len(words) > COUNTED_WORDS:
            rare += 1
            words = Counter({word: count for word, count in words.items() if count > rare})
    if rare:
        note(f"more than {COUNTED_WORDS} different words: rare ones are counted too low, or not at all")
    return words


def load(kind: str, path: Path) -> Callable[[str], str]:
    """A function from a tokenised line to its subwords, joined by spaces."""
    if kind != "bpe":
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        return lambda line: " ".join(processor.encode(line.replace(MARK, "_"), out_type=str))
    with open(path, encoding="utf-8", newline="\n") as file:
        bpe = apply_bpe.BPE(file)

    def split(line: str) -> str:
        if len(bpe.cache) > CACHED_WORDS:
            bpe.cache.clear()
        return " ".join(split_in_stretches(line, bpe.segment))

    return split


def _learn_subword_nmt(
    words: Counter, num_merges: int, path: Path, symbols: tuple[str, ...], escapes: Sequence[str]
) -> None:
    for word in [word for word in words if len(word) > LONGEST_WORD]:
        count = words.pop(word)
        for stretch in stretches(word):
            words[stretch] += count
    learn_bpe.tqdm = lambda items: progress(items, desc="learning merges", unit=" merges")
    learnt = io.StringIO()
    learn_bpe.learn_bpe((f"{word} {count}" for word, count in words.items()), learnt, num_merges, is_dict=True)
    version, *merges = learnt.getvalue().splitlines()
    if not merges:
        raise DataError("no two letters occur together twice in train: the text is too small for subwords of letters")
    write_lines(path, keep_escapes_whole([version, *_merges_to(symbols), *merges], words, escapes))
    if len(merges) < num_merges:
        note(f"only {len(merges)} merges could be learnt of {num_merges}")


def keep_escapes_whole(codes: list[str], words: Iterable[str], escapes: Sequence[str] = ESCAPES) -> list[str]:
    """Codes with additional merges that make each escape one piece, unless they change a word of train."""
    with_escapes = [word for word in words if "&" in word]
    for escape in escapes:
        protected = list(codes)
        for end in ("", UNMERGED):  # at the end of a word, and within one
            protected += _missing_merges(protected, escape, end)
        if _split_all(with_escapes, protected) == _split_all(with_escapes, codes):
            codes = protected
    return codes


def _split_all(words: list[str], codes: list[str]) -> list[str]:
    return apply_bpe.BPE(io.StringIO("\n".join(codes))).segment_tokens(words)


def _missing_merges(codes: list[str], escape: str, end: str) -> list[str]:
    """Merges that join the pieces of an escape. ``end`` follows it: a character, or "" at the end of a word."""
    pieces = [piece.removesuffix("@@") for piece in _split_all([escape + end], codes)]
    joined, *others = pieces[:-1] if end else pieces
    merges = []
    for number, piece in enumerate(others, 1):
        is_last = number == len(others) and not end
        merges.append(f"{joined} {piece}{'</w>' if is_last else ''}")
        joined += piece
    return merges


def _merges_to(symbols: tuple[str, ...]) -> list[str]:
    """Merges that make each symbol one piece if they come first."""
    merges = []
    for symbol in symbols:
        parts = [*symbol[:-1], f"{symbol[-1]}</w>"]
        merges += [f"{''.join(parts[:index])} {parts[index]}" for index in range(1, len(parts))]
    return merges


def _learn_sentencepiece(
    words: Counter, num_merges: int, path: Path, symbols: tuple[str, ...], escapes: Sequence[str], model: str
) -> None:
    counts: Counter = Counter()
    for word, count in words.items():
        counts[word.replace(MARK, "_")] += count
    characters = set().union(*counts) | {MARK}
    whole = [f"{MARK}{symbol}" for symbol in [*symbols, *escapes]] + [*escapes]  # escapes also occur within words
    output = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(f"{word}\t{count}" for word, count in counts.items()),
            input_format="tsv",
            model_writer=output,
            model_type=model,
            vocab_size=num_merges + len(characters) + 3 + len(whole),  # <unk>, <s>, </s>
            hard_vocab_limit=False,
            character_coverage=1.0,
            normalization_rule_name="identity",
            user_defined_symbols=whole,
            split_by_unicode_script=not escapes,  # would split &apos; into three pieces
            split_by_number=not escapes,
            max_sentencepiece_length=100 if model == "bpe" else 16,
            max_sentence_length=1_000_000,
            minloglevel=1,
        )
    except RuntimeError as error:
        raise DataError(f"sentencepiece failed: {error}") from None
    path.write_bytes(output.getvalue())


def make_subwords(
    symbols: tuple[str, ...], escapes: Sequence[str], options: Namespace, tokens: Path, folder: Path
) -> None:
    """Write the model and all splits in subwords. ``symbols`` and ``escapes`` are not split.

    The model is a copy of ``options.codes`` if that is given.
    """
    splits = splits_of(tokens)
    model = folder / MODEL_FILES[options.subwords]
    if options.codes:
        shutil.copyfile(options.codes, model)
    else:
        _learn_from(tokens, splits["train"], symbols, escapes, options, model)
    for split, total in splits.items():
        rows = map_in_order(
            on_each_side,
            (load, [(options.subwords, model)] * len(options.kept_sides)),
            read_rows(tokens, split, options.kept_sides),
            workers=options.workers,
            label=f"splitting {split}",
            total=total,
        )
        write_rows(folder, split, options.kept_sides, rows)
    write_splits(folder, splits)


def _learn_from(
    tokens: Path, num_lines: int, symbols: tuple[str, ...], escapes: Sequence[str], options: Namespace, model: Path
) -> None:
    sides = [read_lines(tokens / f"train.{side}") for side in options.kept_sides]
    total = len(sides) * num_lines
    with progress(itertools.chain(*sides), total=total, desc="counting words", unit=" lines") as train:
        note(f"learning {options.merges} merges with {PROGRAMS[options.subwords]}")
        learn(options.subwords, train, options.merges, model, symbols, escapes)
