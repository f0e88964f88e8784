"""Translation of raw text by trained encoder-decoders, with the attention between words."""

import argparse
import math
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, NoReturn, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.dataclass.configs import GenerationConfig
from fairseq.models import FairseqEncoderDecoderModel
from fairseq.search import Search
from fairseq.tasks.translation import TranslationTask
from torch import Tensor

from fairseq_plugins.evaluation.checkpoints import load_with_task, one_pair
from fairseq_plugins.evaluation.generation import Sampling
from fairseq_plugins.evaluation.raw_text import (
    SideText,
    Subwords,
    buffered,
    checked_lines,
    load_pair_texts,
    number_words,
)
from fairseq_plugins.evaluation.scoring import device_of, prepare_to_score
from fairseq_plugins.files import STANDARD_INPUT, read_lines
from fairseq_plugins.metrics.rouge import without_escapes
from fairseq_plugins.models.checkpoints import check_checkpoints
from fairseq_plugins.options import UserError, check_at_least_one, flag_of

EXTRA_PIECES = 200
"""A translation has at most this many pieces more than its source, end mark included, rounded up to :data:`STEP`."""

STEP = 50
"""Largest lengths are rounded up to a multiple of this, so that more sentences share a batch."""

LARGEST_POWER, LARGEST_NUMBER = 10, 1_000_000
"""Bounds of the length penalty and of flags of fairseq, which ends with an overflow beyond them."""

Alignment = List[Tuple[int, int]]
"""Positions in the source and in the translation, from 0, in the order of the translation."""

GENERATION_FLAGS = (
    *("max_len_a", "max_len_b", "min_len", "match_source_len", "unnormalized", "unkpen", "no_repeat_ngram_size"),
    *("diverse_beam_groups", "diverse_beam_strength", "diversity_rate"),
)
"""Options of ``fairseq-generate`` that are taken as they are."""


@dataclass(frozen=True, kw_only=True)
class SearchOptions(Sampling):
    """How translations are searched or drawn.

    Attributes:
        beam: number of hypotheses.
        nbest: number of translations of each line, at most ``beam``.
        lenpen: scores are divided by the length to this power.
        max_len: largest number of subwords of a translation. Default: see :data:`EXTRA_PIECES`.
        replace_unk: replace unknown words by the source words that the attention reads most, or by their translations
            in a file of ``source target`` lines.
        sampling: draw the hypotheses instead of searching. They depend only on the line and the seed.
        flags: further flags of ``fairseq-generate``, of :data:`GENERATION_FLAGS`.

    Raises:
        UserError: if a value does not fit, or two options contradict each other.
    """

    beam: int = 5
    nbest: int = 1
    lenpen: float = 1.0
    max_len: Optional[int] = None
    replace_unk: Union[bool, str, Path] = False
    sampling: bool = False
    flags: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least_one(self.beam, flag="--beam")
        if check_at_least_one(self.nbest, flag="--nbest") > self.beam:
            raise UserError(f"--nbest {self.nbest} of a beam of {self.beam}: give 1 to {self.beam}, or a larger --beam")
        if not abs(self.lenpen) <= LARGEST_POWER:
            raise UserError(f"--lenpen {self.lenpen}: give {-LARGEST_POWER} to {LARGEST_POWER}")
        if self.max_len is not None:
            check_at_least_one(self.max_len, flag="--max-len")
        if not (self.sampling or self.is_default):
            raise UserError("--top-k, --top-p, --temperature and --seed need --sampling: add it, or leave them out")
        _ = self.config, self.unknown_words

    @cached_property
    def config(self) -> GenerationConfig:
        """Options of fairseq's generator, without the largest length."""
        given = _read_flags(self.flags)
        options: Dict[str, Any] = {"beam": self.beam, "nbest": self.nbest, "lenpen": self.lenpen, **given}
        config = GenerationConfig(**options)
        searches = {
            "--sampling": self.sampling,
            "--match-source-len": config.match_source_len,
            "--diverse-beam-groups": config.diverse_beam_groups > 0,
            "--diversity-rate": config.diversity_rate > -1,
        }
        chosen = [flag for flag, is_chosen in searches.items() if is_chosen]
        if len(chosen) > 1:
            raise UserError(f"{' and '.join(chosen)} are different searches: give one of them")
        lengths = [flag_of(name) for name in ("max_len_a", "max_len_b", "match_source_len") if name in given]
        if self.max_len is not None and lengths:
            raise UserError(f"--max-len {self.max_len} and {lengths[0]}: give one of them")
        if config.diverse_beam_groups > 0 and self.beam % config.diverse_beam_groups:
            raise UserError(f"--diverse-beam-groups {config.diverse_beam_groups}: --beam must be a multiple of it")
        return config

    @cached_property
    def unknown_words(self) -> Dict[str, str]:
        """Words that replace unknown ones, by words of the source."""
        if isinstance(self.replace_unk, bool):
            return {}
        if Path(self.replace_unk) == STANDARD_INPUT:
            raise UserError("--replace-unk -: the standard input is what is translated, give a file")
        pairs = [line.split() for line in read_lines(Path(self.replace_unk), when_empty="kept")]
        wrong = next((number for number, pair in enumerate(pairs, start=1) if len(pair) != 2), None)
        if wrong is not None:
            raise UserError(f"--replace-unk {self.replace_unk}, line {wrong}: give two words, of source and target")
        return {source: target for source, target in pairs}

    def longest(self, num_pieces: int) -> int:
        """Largest number of pieces of a translation, without end mark; ``num_pieces`` of the source include it."""
        if self.max_len is not None:
            return self.max_len
        if self.config.match_source_len:
            return num_pieces
        if any(flag.startswith("--max-len-") for flag in self.flags):
            return int(self.config.max_len_a * num_pieces + self.config.max_len_b)
        return STEP * math.ceil((num_pieces + EXTRA_PIECES) / STEP)


_OWN_FLAGS = {
    **{name: flag_of(name) for name in ("beam", "nbest", "lenpen", "replace_unk", "sampling", "temperature")},
    **{"sampling_topk": "--top-k", "sampling_topp": "--top-p", "seed": "--seed", "path": "--path", "cpu": "--cpu"},
    **{"batch_size": "--batch-size", "max_sentences": "--batch-size", "print_alignment": "--json"},
}
"""Options of ``fairseq-generate`` for which ``translate`` has flags of its own, with these flags."""


def _read_flags(flags: Sequence[str]) -> Dict[str, Any]:
    """Values of :data:`GENERATION_FLAGS`, by name."""

    def refuse(message: str) -> NoReturn:
        raise UserError(f"flags of fairseq-generate: {message}")

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    vars(parser).update(error=refuse)
    for one in fields(GenerationConfig):
        if one.name in GENERATION_FLAGS:
            kind: Any = {"action": "store_true"} if one.type is bool else {"type": one.type}
            parser.add_argument(flag_of(one.name), **kind)
    found, unknown = parser.parse_known_args(list(flags))
    if unknown:
        flag = unknown[0].partition("=")[0]
        own = _OWN_FLAGS.get(flag.removeprefix("--").replace("-", "_"))
        taken = ", ".join(map(flag_of, GENERATION_FLAGS))
        remedy = f"give {own} before the --" if own else f"translate takes {taken} there"
        raise UserError(f"{flag} after the --: {remedy}")
    for name, value in vars(found).items():
        if not abs(value) <= LARGEST_NUMBER:
            raise UserError(f"{flag_of(name)} {value}: give {-LARGEST_NUMBER:,} to {LARGEST_NUMBER:,}")
    return vars(found)


@dataclass(frozen=True, kw_only=True)
class TranslatedSentence:
    """A sentence and its best translation.

    Attributes:
        text: the translation as plain text.
        source: S pieces that the models read, without the end mark.
        target: T pieces that they wrote, without the end mark.
        attention: weights (T + 1, S + 1) float32, the mean of the models. The last row and column belong to the end
            marks. None if no model has attention.
        score: log2 of the probability of the pieces and the end mark, divided by their number to the power
            ``lenpen``, as ``fairseq-generate`` prints it.
        others: the next best translations, if they were requested.
        line: the raw line; empty in ``others``.
    """

    text: str
    source: List[str]
    target: List[str]
    attention: Optional[Tensor] = field(default=None, compare=False)
    score: float = 0.0
    others: List["TranslatedSentence"] = field(default_factory=list)
    line: str = ""

    @property
    def alignment(self) -> Optional[Alignment]:
        """For each target piece the source piece that it attends to most. None without attention."""
        if self.attention is None:
            return None
        return [(read, written) for written, read in enumerate(self.attention[:-1, :-1].argmax(1).tolist())]

    def figures(self) -> Dict[str, Any]:
        """The raw line, the tokens that the models read, and all translations, the best first, for JSON."""
        hypotheses = [
            {"text": one.text, "score": one.score, "tokens": one.target, "alignment": one.alignment}
            for one in (self, *self.others)
        ]
        return {"source": self.line, "tokens": self.source, "hypotheses": hypotheses}


class _SeededSampling(Search):
    """Draws words. Each sentence of a batch has its own random generator, so no other sentence has an effect on it."""

    def __init__(self, dictionary: Dictionary, sampling: Sampling, generators: Sequence[np.random.Generator]):
        super().__init__(dictionary)
        self.sampling, self.generators = sampling, generators

    def step(
        self,
        step: int,
        lprobs: Tensor,
        scores: Tensor,
        prev_output_tokens: Optional[Tensor] = None,
        original_batch_idxs: Optional[Tensor] = None,
    ) -> Tuple[Tensor, Tensor, Tensor]:
        """Log-probability of each hypothesis with one more word, the word, and the hypothesis, (sentences, beam)."""
        assert original_batch_idxs is not None
        num_sentences, beam, num_words = lprobs.shape
        draws = np.stack([self.generators[number].random(beam) for number in original_batch_idxs.tolist()])
        rows = lprobs.reshape(-1, num_words).double().cpu()
        words = (
            self.sampling.choose(rows, torch.from_numpy(draws).flatten()).view(num_sentences, beam).to(lprobs.device)
        )
        log_probs = lprobs.gather(2, words.unsqueeze(2)).squeeze(2)
        beams = torch.arange(beam, device=lprobs.device).repeat(num_sentences, 1)
        return (log_probs if step == 0 else log_probs + scores[:, :, step - 1]), words, beams


class Translator:
    """Translates sentences or articles by fairseq's beam search. Several threads can use it at the same time.

    The models are an ensemble of encoder-decoders in evaluation mode, on one device, with fairseq's task. Text is
    prepared as ``source`` and ``target`` say, which share their subwords.
    """

    def __init__(
        self, *, models: Sequence[FairseqEncoderDecoderModel], task: TranslationTask, source: SideText, target: SideText
    ):
        self.models = list(models)
        self.task = task
        self.source, self.target = source, target
        for model in self.models:
            model.make_generation_fast_(need_attn=True)  # no beam size, which would be fixed for all translations
        limits = utils.resolve_max_positions(task.max_positions(), *[model.max_positions() for model in self.models])
        self.max_length: int = limits[0]
        self._max_target_length = min(model.max_decoder_positions() for model in self.models) - 1

    def translate(self, lines: Sequence[str], *, batch_size: int = 32, **options: Any) -> List[TranslatedSentence]:
        """The best translation of each raw line, in the order of the lines. A blank line stays blank.

        Args:
            lines: sentences, or articles.
            batch_size: lines that are translated at a time. It does not change the translations, beyond rounding.
            options: those of :class:`SearchOptions`. With ``nbest``, the best translation has the others in ``others``.

        Raises:
            UserError: if a line is longer than the models read, or an option does not fit.
        """
        lines = list(self.source.watched(checked_lines(lines)))
        search = SearchOptions(**options)
        check_at_least_one(batch_size, flag="--batch-size")
        pieces = [self.source.split(line) for line in lines]
        for number, one in enumerate(pieces, start=1):
            self._check_length(one, where=f"the text: line {number:,}")
        return list(self._translate_group(lines, pieces, search, batch_size=batch_size))

    def attention(self, line: str, *, beam: int = 5) -> "WordAttention":
        """Attention between the words of a raw line and those of its translation.

        Raises:
            UserError: if the line is blank, or the models have no attention.
        """
        (sentence,) = self.translate([line], beam=beam)
        if not sentence.source:
            raise UserError("a blank line has no attention")
        return word_attention(sentence, self.source.subwords)

    def translate_stream(
        self,
        lines: Iterable[str],
        search: SearchOptions,
        *,
        batch_size: int = 32,
        buffer: int = 1024,
        name: str = "the text",
    ) -> Iterator[TranslatedSentence]:
        """Translate raw lines in order as they come; see :meth:`translate`. Lines with newlines are not refused.

        ``buffer`` lines are read before they are translated, sorted by length among themselves. ``name`` names the text
        in messages. Raises UserError if ``--min-len`` is above the largest length of a translation, or, after the
        translations of the lines before, if a line is longer than the models can read.
        """
        check_at_least_one(batch_size, flag="--batch-size")
        num_read = 0
        for group in buffered(self.source.watched(lines, name=name), num_lines=buffer):
            pieces = [self.source.split(line) for line in group]
            too_long = next((n for n, one in enumerate(pieces) if len(one) >= self.max_length), len(pieces))
            yield from self._translate_group(group[:too_long], pieces[:too_long], search, batch_size=batch_size)
            if too_long < len(pieces):
                self._check_length(pieces[too_long], where=f"{name}: line {num_read + too_long + 1:,}")
            num_read += len(group)

    def _check_length(self, pieces: Sequence[str], *, where: str) -> None:
        if len(pieces) >= self.max_length:
            raise UserError(
                f"{where} has {len(pieces):,} subwords, the model reads up to {self.max_length - 1:,}: divide it into "
                "sentences"
            )

    def _translate_group(
        self, lines: Sequence[str], pieces: Sequence[List[str]], search: SearchOptions, *, batch_size: int
    ) -> Iterator[TranslatedSentence]:
        """Translate lines in batches of similar lengths. fairseq has one largest length for a whole batch."""
        by_length: Dict[int, List[int]] = {}
        for number in sorted(range(len(pieces)), key=lambda number: len(pieces[number])):
            if pieces[number]:
                longest = min(search.longest(len(pieces[number]) + 1), self._max_target_length)
                by_length.setdefault(longest, []).append(number)
        translated: Dict[int, TranslatedSentence] = {}
        for longest, numbers in by_length.items():
            for start in range(0, len(numbers), batch_size):
                batch = numbers[start : start + batch_size]
                found = self._translate_batch([pieces[number] for number in batch], search, longest=longest)
                translated.update(zip(batch, found))
        blank = TranslatedSentence(text="", source=[], target=[])
        blank = replace(blank, others=[blank] * (search.nbest - 1))
        return (replace(translated.get(number, blank), line=line) for number, line in enumerate(lines))

    def _translate_batch(
        self, sentences: Sequence[List[str]], search: SearchOptions, *, longest: int
    ) -> List[TranslatedSentence]:
        if longest < 1:
            raise UserError("--max-len-a, --max-len-b: they allow translations no subword; give larger ones")
        if search.config.min_len > longest:
            raise UserError(f"--min-len {search.config.min_len}: a translation has at most {longest} subwords here")
        tokens = [number_words(sentence, self.task.source_dictionary) for sentence in sentences]
        dataset = self.task.build_dataset_for_inference(tokens, [len(sentence) for sentence in tokens])
        batch = dataset.collater([dataset[number] for number in range(len(dataset))])
        device = device_of(self.models[0])
        if device.type == "cuda":
            batch = utils.move_to_cuda(batch, device=device)
        config = replace(search.config, max_len_a=0, max_len_b=longest)
        generator = self.task.build_generator(self.models, config)
        if search.sampling:
            chances = [search.generator(*sentence.tolist()) for sentence in tokens]
            generator.search = _SeededSampling(self.task.target_dictionary, search, chances)
        found = self.task.inference_step(generator, self.models, batch)
        translated: Dict[int, TranslatedSentence] = {}
        for number, read, hypotheses in zip(batch["id"].tolist(), batch["net_input"]["src_tokens"], found):
            is_read = read.ne(self.task.source_dictionary.pad()).cpu()
            best, *others = (
                self._as_sentence(sentences[number], one, is_read, search) for one in hypotheses[: search.nbest]
            )
            translated[number] = replace(best, others=others)
        return [translated[number] for number in range(len(sentences))]

    def _as_sentence(
        self, source: List[str], hypothesis: Dict[str, Any], is_read: Tensor, search: SearchOptions
    ) -> TranslatedSentence:
        dictionary = self.task.target_dictionary
        target = [dictionary[token] for token in hypothesis["tokens"].tolist() if token != dictionary.eos()]
        attention = hypothesis["attention"]  # (source positions with padding, T + 1), empty without attention
        sentence = TranslatedSentence(
            text=self._join(target),
            source=source,
            target=target,
            attention=attention.float().cpu()[is_read].t() if attention.numel() else None,
            score=float(hypothesis["score"]) / math.log(2),
        )
        if search.replace_unk is False:
            return sentence
        return replace(sentence, text=self._join(self._replace_unknown(sentence, search.unknown_words)))

    def _replace_unknown(self, sentence: TranslatedSentence, table: Dict[str, str]) -> List[str]:
        """Pieces of a translation, with each unknown piece replaced by the source word or its word in the table.

        If a copying model wrote the other pieces of the source word around it, only the missing piece replaces it.
        """
        if sentence.alignment is None:
            raise UserError("--replace-unk needs attention, and the model has none: leave it out")
        source, unknown = sentence.source, self.task.target_dictionary.unk_word
        aligned = list(zip(sentence.target, (read for read, _ in sentence.alignment)))
        copied = [source[read] if piece == unknown else piece for piece, read in aligned]
        spans: List[Tuple[str, int, int]] = []  # for each source piece its word, and the word's begin and end
        for word in self.source.group(source):
            spans += [("".join(word), len(spans), len(spans) + len(word))] * len(word)
        pieces: List[str] = []
        for place, (piece, read) in enumerate(aligned):
            word, begin, end = spans[read]
            is_copied = end - begin > 1 and copied[place - read + begin : place - read + end] == source[begin:end]
            if piece != unknown or is_copied:
                pieces.append(copied[place])
            else:
                pieces += self.target.subwords.split(table.get(word, word))
        return pieces

    def _join(self, pieces: Sequence[str]) -> str:
        """Plain text of pieces. Models may write ``<s>``, which fairseq leaves out as well."""
        return self.target.join([piece for piece in pieces if piece != self.task.target_dictionary.bos_word])


def load_translator(
    paths: Sequence[Union[str, Path]], data: Union[str, Path], *, device: str = "cpu", precision: str = "float32"
) -> Translator:
    """Load a translator from a checkpoint, or an ensemble from several, and a folder of pairs by data-prep.

    For ``precision`` see :func:`fairseq_plugins.load`. Raises UserError if a file is missing, unreadable or not of an
    encoder-decoder, if its vocabulary is not the data's, if the data are not sentence pairs or lack subword codes, or
    as :func:`prepare_to_score` does.
    """
    check_checkpoints(paths)
    loaded, tasks = zip(*[load_with_task(path, data, kind=TranslationTask) for path in paths])
    models = prepare_to_score(loaded, device=device, precision=precision)
    source, target = one_pair((str(task.cfg.source_lang), str(task.cfg.target_lang)) for task in tasks)
    texts = load_pair_texts(Path(data), source=source, target=target)
    return Translator(models=models, task=tasks[0], source=texts[0], target=texts[1])


# Attention between whole words.

END = "</s>"


@dataclass(frozen=True, eq=False)
class WordAttention:
    """Attention of the T words of a translation to the S words of its source, each with the end mark at the end.

    A row of ``weights`` (T, S) float32 is a distribution over the words of the source.
    """

    weights: Tensor
    source: List[str]
    target: List[str]


def word_attention(sentence: TranslatedSentence, subwords: Subwords) -> WordAttention:
    """Attention between words: summed over the pieces of a source word, averaged over the pieces of a target word.

    Raises UserError if the sentence has no attention.
    """
    if sentence.attention is None:
        raise UserError("the model has no attention to draw")
    source, target = ([*subwords.group(pieces), [END]] for pieces in (sentence.source, sentence.target))
    per_target = [rows.mean(0) for rows in sentence.attention.split([len(word) for word in target])]
    per_word = [columns.sum(1) for columns in torch.stack(per_target).split([len(word) for word in source], dim=1)]
    return WordAttention(torch.stack(per_word, dim=1), _readable(source), _readable(target))


def _readable(words: Sequence[Sequence[str]]) -> List[str]:
    return [without_escapes("".join(word)) for word in words]
