"""Trained encoder-decoders as a translator of raw text."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Union

import torch
from fairseq import utils
from fairseq.dataclass.configs import GenerationConfig
from fairseq.models import FairseqEncoderDecoderModel
from fairseq.tasks.translation import TranslationTask
from sacremoses import MosesDetokenizer
from torch import Tensor

from fairseq_plugins.evaluation.checkpoints import load_translation_models, one_pair
from fairseq_plugins.evaluation.raw_text import Subwords, TextPreparation, load_text_preparation
from fairseq_plugins.options import check_at_least_one, check_data_folder, check_whole

EXTRA_PIECES = 200
"""A translation has at most so many pieces more than its source has with its end mark."""


@dataclass(frozen=True, kw_only=True)
class TranslatedSentence:
    """A sentence and the best translation that the beam search found.

    Attributes:
        text: the translation as a reader expects it.
        source: pieces that the models read, (S,), without the end mark.
        target: pieces that they wrote, (T,), without the end mark.
        attention: weights (T + 1, S + 1) float32, the mean of the models; the last row and column are those of the
            end marks. None where no model has attention.
        score: by which the beam search chose, the mean log-probability of a piece and the end mark in nats.
        others: the translations that come next, the best first, as many as were asked for.
    """

    text: str
    source: List[str]
    target: List[str]
    attention: Optional[Tensor] = field(default=None, compare=False)
    score: float = 0.0
    others: List["TranslatedSentence"] = field(default_factory=list)


class Translator:
    """Translates sentences by fairseq's beam search; several threads can do so at the same time.

    Args:
        models: an ensemble of encoder-decoders in evaluation mode, on one device.
        task: fairseq's, with the dictionaries.
        preparation: how raw text becomes what the models read.
    """

    def __init__(
        self,
        *,
        models: Sequence[FairseqEncoderDecoderModel],
        task: TranslationTask,
        preparation: TextPreparation,
    ):
        self.models = list(models)
        self.task = task
        self.preparation = preparation
        for model in self.models:
            model.make_generation_fast_(need_attn=True)  # without a beam's size, which would hold for all translations
        limits = utils.resolve_max_positions(task.max_positions(), *[model.max_positions() for model in self.models])
        self.max_length: int = limits[0]

    def translate(self, lines: Sequence[str], *, beam: int = 5, nbest: int = 1) -> List[TranslatedSentence]:
        """Translate raw lines in one batch, in their order; a blank line stays blank.

        A translation that does not end is cut :data:`EXTRA_PIECES` beyond the longest source, or where the models end.

        Args:
            lines: sentences.
            beam: number of hypotheses that are kept.
            nbest: translations of each sentence, at most ``beam``; the best has the others.

        Raises:
            ValueError: if a line is longer than the models can read, or a number does not fit.
        """
        check_at_least_one(beam, flag="beam")
        if not 1 <= check_whole(nbest, flag="nbest") <= beam:
            raise ValueError(f"nbest {nbest} of a beam of {beam}: give 1 to {beam}, or a larger beam")
        pieces = [self.preparation.split(line) for line in lines]
        for line, sentence in zip(lines, pieces):
            if len(sentence) + 1 > self.max_length:
                raise ValueError(
                    f"the line that begins with '{line.strip()[:30]}' has {len(sentence):,} subwords, the model reads "
                    f"up to {self.max_length - 1:,}: divide it into sentences"
                )
        translated = [TranslatedSentence(text="", source=[], target=[]) for _ in lines]
        chosen = [number for number, sentence in enumerate(pieces) if sentence]
        if chosen:
            found = self._translate([pieces[number] for number in chosen], beam=beam, nbest=nbest)
            for number, sentence in zip(chosen, found):
                translated[number] = sentence
        return translated

    def _translate(self, sentences: Sequence[List[str]], *, beam: int, nbest: int) -> List[TranslatedSentence]:
        source_dictionary = self.task.source_dictionary
        tokens = [
            source_dictionary.encode_line(" ".join(sentence), add_if_not_exist=False).long() for sentence in sentences
        ]
        dataset = self.task.build_dataset_for_inference(tokens, [len(sentence) for sentence in tokens])
        batch = dataset.collater([dataset[number] for number in range(len(dataset))])
        device = next(self.models[0].parameters()).device
        if device.type == "cuda":
            batch = utils.move_to_cuda(batch, device=device)
        options = GenerationConfig(beam=beam, max_len_a=1, max_len_b=EXTRA_PIECES)
        generator = self.task.build_generator(self.models, options)
        found = self.task.inference_step(generator, self.models, batch)
        translated: Dict[int, TranslatedSentence] = {}
        for number, read, hypotheses in zip(batch["id"].tolist(), batch["net_input"]["src_tokens"], found):
            is_read = read.ne(source_dictionary.pad()).cpu()
            best, *others = (self._as_sentence(sentences[number], one, is_read) for one in hypotheses[:nbest])
            translated[number] = replace(best, others=others)
        return [translated[number] for number in range(len(sentences))]

    def _as_sentence(self, source: List[str], hypothesis: Dict[str, Any], is_read: Tensor) -> TranslatedSentence:
        dictionary = self.task.target_dictionary
        target = [dictionary[token] for token in hypothesis["tokens"].tolist() if token != dictionary.eos()]
        attention = hypothesis["attention"]  # (source positions with padding, T + 1), empty without attention
        return TranslatedSentence(
            text=self.preparation.join(target),
            source=source,
            target=target,
            attention=attention.float().cpu()[is_read].t() if attention.numel() else None,
            score=float(hypothesis["score"]),
        )


def load_translator(paths: Sequence[Union[str, Path]], data: Union[str, Path], *, device: str = "cpu") -> Translator:
    """A translator from checkpoints; several are an ensemble.

    Args:
        paths: checkpoints of encoder-decoders.
        data: directory of sentence pairs that data-prep wrote.
        device: where the models work.

    Raises:
        ValueError: if a file is missing, unreadable or no encoder-decoder's, if its vocabulary is not the data's, or if
            the data are no sentence pairs or do not tell how raw text is split.
    """
    check_data_folder(Path(data))
    loaded = load_translation_models(paths, data)
    models, tasks = [model.to(device) for model, _ in loaded], [task for _, task in loaded]
    source, target = one_pair((str(task.cfg.source_lang), str(task.cfg.target_lang)) for task in tasks)
    preparation = load_text_preparation(Path(data), source=source, target=target)
    return Translator(models=models, task=tasks[0], preparation=preparation)


# The attention of a translation between whole words.


END = "</s>"


@dataclass(frozen=True, eq=False)
class WordAttention:
    """Which words of the source were read for which word of the translation.

    Attributes:
        weights: (T, S) float32; a row is a distribution over the words of the source.
        source: S words, the end mark the last.
        target: T words, the end mark the last.
    """

    weights: Tensor
    source: List[str]
    target: List[str]


def word_attention(sentence: TranslatedSentence, subwords: Subwords) -> WordAttention:
    """Join the attention between pieces: a sum over the pieces of a source word, a mean over those of a target word.

    Raises:
        ValueError: if the sentence has no attention.
    """
    if sentence.attention is None:
        raise ValueError("the model has no attention: there is none to draw")
    source, target = ([*subwords.group(pieces), [END]] for pieces in (sentence.source, sentence.target))
    per_target = [rows.mean(0) for rows in sentence.attention.split([len(word) for word in target])]
    per_word = [columns.sum(1) for columns in torch.stack(per_target).split([len(word) for word in source], dim=1)]
    return WordAttention(torch.stack(per_word, dim=1), _readable(source), _readable(target))


def _readable(words: Sequence[Sequence[str]]) -> List[str]:
    return [MosesDetokenizer().unescape_xml("".join(word)) for word in words]
