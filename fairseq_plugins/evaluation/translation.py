"""Translation of raw text by trained encoder-decoders, with the attention between words."""

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
from fairseq_plugins.options import UserError, check_at_least_one, check_data_folder, check_whole

EXTRA_PIECES = 200
"""A translation has at most so many pieces more than its source, end mark included."""


@dataclass(frozen=True, kw_only=True)
class TranslatedSentence:
    """A sentence and the best translation that the beam search found.

    Attributes:
        text: the translation as plain text.
        source: S pieces that the models read, without the end mark.
        target: T pieces that they wrote, without the end mark.
        attention: weights (T + 1, S + 1) float32, the mean of the models. The last row and column are those of the end
            marks. None if no model has attention.
        score: of the beam search, the mean log-probability of the pieces and the end mark in nats.
        others: the next best translations, if they were requested.
    """

    text: str
    source: List[str]
    target: List[str]
    attention: Optional[Tensor] = field(default=None, compare=False)
    score: float = 0.0
    others: List["TranslatedSentence"] = field(default_factory=list)


class Translator:
    """Translates sentences by fairseq's beam search. Several threads can use it at the same time.

    Args:
        models: an ensemble of encoder-decoders in evaluation mode, on one device.
        task: fairseq's, with the dictionaries.
        preparation: conversion of raw text to pieces and back.
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
            model.make_generation_fast_(need_attn=True)  # no beam size, which would be fixed for all translations
        limits = utils.resolve_max_positions(task.max_positions(), *[model.max_positions() for model in self.models])
        self.max_length: int = limits[0]

    def translate(self, lines: Sequence[str], *, beam: int = 5, nbest: int = 1) -> List[TranslatedSentence]:
        """Translate raw lines in one batch, in their order. A blank line stays blank.

        The length of a translation is at most :data:`EXTRA_PIECES` above that of the longest source, and at most the
        longest that the models can write.

        Args:
            lines: sentences.
            beam: number of hypotheses.
            nbest: number of translations of each sentence, at most ``beam``. The best one has the others in ``others``.

        Raises:
            UserError: if a line is longer than the models can read, or a number does not fit.
        """
        check_at_least_one(beam, flag="beam")
        if not 1 <= check_whole(nbest, flag="nbest") <= beam:
            raise UserError(f"nbest {nbest} of a beam of {beam}: give 1 to {beam}, or a larger beam")
        pieces = [self.preparation.split(line) for line in lines]
        for line, sentence in zip(lines, pieces):
            if len(sentence) + 1 > self.max_length:
                raise UserError(
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
        data: folder of sentence pairs that data-prep wrote.
        device: of the models.

    Raises:
        UserError: if a file is missing, unreadable or not of an encoder-decoder, if its vocabulary is not the data's,
            or if the data are not sentence pairs or lack subword codes.
    """
    check_data_folder(Path(data))
    loaded = load_translation_models(paths, data)
    models, tasks = [model.to(device) for model, _ in loaded], [task for _, task in loaded]
    source, target = one_pair((str(task.cfg.source_lang), str(task.cfg.target_lang)) for task in tasks)
    preparation = load_text_preparation(Path(data), source=source, target=target)
    return Translator(models=models, task=tasks[0], preparation=preparation)


# Attention between whole words.

END = "</s>"


@dataclass(frozen=True, eq=False)
class WordAttention:
    """Attention of the words of a translation to those of its source.

    Attributes:
        weights: (T, S) float32; a row is a distribution over the words of the source.
        source: S words, the last one the end mark.
        target: T words, the last one the end mark.
    """

    weights: Tensor
    source: List[str]
    target: List[str]


def word_attention(sentence: TranslatedSentence, subwords: Subwords) -> WordAttention:
    """Attention between words: summed over the pieces of a source word, averaged over those of a target word.

    Raises:
        UserError: if the sentence has no attention.
    """
    if sentence.attention is None:
        raise UserError("the model has no attention: there is none to draw")
    source, target = ([*subwords.group(pieces), [END]] for pieces in (sentence.source, sentence.target))
    per_target = [rows.mean(0) for rows in sentence.attention.split([len(word) for word in target])]
    per_word = [columns.sum(1) for columns in torch.stack(per_target).split([len(word) for word in source], dim=1)]
    return WordAttention(torch.stack(per_word, dim=1), _readable(source), _readable(target))


def _readable(words: Sequence[Sequence[str]]) -> List[str]:
    return [MosesDetokenizer().unescape_xml("".join(word)) for word in words]
