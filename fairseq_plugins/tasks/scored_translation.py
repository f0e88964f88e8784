"""Translation whose validation decodes and scores by BLEU, chrF or ROUGE."""

import json
import math
from argparse import Namespace
from dataclasses import dataclass, field, fields
from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy as np
import torch
from fairseq import utils
from fairseq.criterions import FairseqCriterion
from fairseq.data import Dictionary, encoders
from fairseq.data.data_utils import post_process
from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.configs import GenerationConfig
from fairseq.logging import metrics
from fairseq.models import BaseFairseqModel
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor, nn

from fairseq_plugins.fairseq_patches.flags import remedy_of_value
from fairseq_plugins.metrics.corpus import CORPUS_METRICS, check_script
from fairseq_plugins.metrics.rouge import NO_HYPOTHESIS_HAS_THIS
from fairseq_plugins.options import UserError, check_choice, choices, flag_of

EvalScorer = choices(list(CORPUS_METRICS))

UNKNOWN_IN_HYPOTHESIS = "UNKNOWN"
"""Text of an unknown word in a hypothesis. References write theirs with other letters, so the two never match."""

STATISTICS = "_eval_scorer"
"""Prefix of the sums in the logging output. fairseq does not print names that begin with an underscore."""


@dataclass
class EvalScorerConfig(FairseqDataclass):
    """Flags that ``--task scored_translation`` adds to the flags of fairseq's ``translation``."""

    eval_scorer: EvalScorer = field(
        default="bleu",
        metadata={
            "help": "metric of decoded validation sets, which --best-checkpoint-metric can name: sacreBLEU's BLEU "
            "or chrF, or the F1 of ROUGE-1, -2 or -L (default: bleu)"
        },
    )
    eval_scorer_args: str = field(
        default="{}",
        metadata={
            "help": 'options of generation, as JSON: \'{"beam": 4, "max_len_a": 1.2, "max_len_b": 10}\' (default: {})'
        },
    )
    eval_scorer_detok: str = field(
        default="space",
        metadata={"help": "tokeniser that is undone before scoring, such as moses; space undoes none (default: space)"},
    )
    eval_scorer_remove_bpe: Optional[str] = field(
        default=None,
        metadata={
            "help": "join subwords before scoring: @@ , or sentencepiece (default: none are joined)",
            "argparse_const": "@@ ",
        },
    )


GENERATION_ARGUMENTS = {
    *("beam", "max_len_a", "max_len_b", "min_len", "match_source_len", "unnormalized", "lenpen", "unkpen"),
    *("temperature", "no_repeat_ngram_size", "sampling", "sampling_topk", "sampling_topp"),
    *("diverse_beam_groups", "diverse_beam_strength", "diversity_rate"),
}
"""Keys of ``--eval-scorer-args``: what fairseq's ``build_generator`` reads and decoding for a score allows."""


@dataclass
class ScoredTranslationConfig(EvalScorerConfig, TranslationConfig):
    """Flags of ``--task scored_translation``."""


@register_task("scored_translation", dataclass=ScoredTranslationConfig)
class ScoredTranslationTask(TranslationTask):
    """fairseq's ``translation`` whose validation decodes, and logs the metric ``--eval-scorer`` under that name.

    The statistics of sentences are summed over batches and processes, which gives the score of the whole set. Decoding
    runs without dropout and restores the random state, so that it does not change the training run.

    Raises:
        UserError: if ``--eval-scorer-args`` are not a JSON object, generation has no such argument or value, a
            tokeniser or kind of subwords is unknown, or ``--eval-bleu`` is given as well.
    """

    def __init__(self, cfg: ScoredTranslationConfig, src_dict: Dictionary, tgt_dict: Dictionary):
        super().__init__(cfg, src_dict, tgt_dict)
        self._scoring: EvalScorerConfig = cfg
        if cfg.eval_bleu:
            raise UserError(
                "--eval-bleu decodes as --eval-scorer bleu does: leave it out with --task scored_translation"
            )
        _check_no_flags_of_eval_bleu(cfg)
        self._metric = CORPUS_METRICS[str(cfg.eval_scorer)](language=cfg.target_lang or "")
        # sums in a logging output: each is a number, which processes sum without pickling it
        self._names = [f"{STATISTICS}_{number}" for number in range(len(self._metric.statistics("", "")))]
        self._generation = _generation_arguments(cfg.eval_scorer_args)
        detok = check_choice(cfg.eval_scorer_detok, sorted(encoders.TOKENIZER_REGISTRY), flag="--eval-scorer-detok")
        languages = {"source_lang": cfg.source_lang, "target_lang": cfg.target_lang}  # only some tokenisers read them
        self._tokenizer = encoders.build_tokenizer(Namespace(tokenizer=detok, **languages))
        if cfg.eval_scorer_remove_bpe is not None:
            try:
                post_process("", cfg.eval_scorer_remove_bpe)
            except NotImplementedError as error:
                raise UserError(
                    f"--eval-scorer-remove-bpe '{cfg.eval_scorer_remove_bpe}' is no kind of subwords: give '@@ ', or "
                    "sentencepiece"
                ) from error
        self._generator: Optional[SequenceGenerator] = None

    @property
    def validation_metrics(self) -> Dict[str, bool]:
        """Metrics that validation logs beside the criterion's, and whether higher is better."""
        return {str(self._scoring.eval_scorer): True}

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> BaseFairseqModel:
        model = super().build_model(cfg, from_checkpoint)
        try:
            self._generator = self.build_generator([model], self._generation)
        except (AssertionError, ValueError) as error:  # of fairseq, or of a model of this package
            raise UserError(f"--eval-scorer-args: {error}") from error
        return model

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any) -> None:
        """Read a split. fairseq reads validation sets before it trains, so their script and lengths are checked here.

        Raises:
            UserError: if ``--eval-scorer`` finds no words in the script of a validation set's references, or
                ``--eval-scorer-args`` allow no translation of its shortest sentence.
        """
        super().load_dataset(split, epoch=epoch, combine=combine, **kwargs)
        targets = self.datasets[split].tgt
        if self._generator is None or split == self.cfg.train_subset:  # without a model only data are read
            return
        if len(self.datasets[split]) > 0:
            sizes = self.datasets[split].src_sizes
            _check_lengths(self._generator, shortest=int(min(sizes)), longest=int(max(sizes)))
        if targets is not None:
            references = (self._reference(targets[number]) for number in range(len(targets)))
            check_script(str(self._scoring.eval_scorer), references, flag="--eval-scorer")

    def valid_step(
        self, sample: Dict[str, Any], model: nn.Module, criterion: FairseqCriterion
    ) -> Tuple[Tensor, int, Dict[str, Any]]:
        """fairseq's step, with the statistics of the decoded batch added to the logging output."""
        loss, sample_size, logging_output = super().valid_step(sample, model, criterion)
        logging_output.update(zip(self._names, self._decode(sample, model).tolist()))
        return loss, sample_size, logging_output

    def reduce_metrics(self, logging_outputs: List[Dict[str, Any]], criterion: FairseqCriterion) -> None:
        super().reduce_metrics(logging_outputs, criterion)
        if not any(self._names[0] in log for log in logging_outputs):
            return  # in training
        for name in self._names:
            metrics.log_scalar(name, sum(float(log.get(name, 0)) for log in logging_outputs))
        metrics.log_derived(str(self._scoring.eval_scorer), self._score)

    def _score(self, meters: Mapping[str, Any]) -> float:
        return self._metric.score(np.array([meters[name].sum for name in self._names]))

    def _decode(self, sample: Dict[str, Any], model: nn.Module) -> np.ndarray:
        """Decode a batch; the statistics summed over its sentences."""
        device = sample["target"].device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):  # for sampling
            found = self.inference_step(self._generator, [model], sample)
        total = np.zeros(len(self._names))
        for hypotheses, target in zip(found, sample["target"]):
            hypothesis = self._text(hypotheses[0]["tokens"], unknown=UNKNOWN_IN_HYPOTHESIS)
            total += self._metric.statistics(hypothesis, self._reference(target))
        return total

    def _reference(self, target: Tensor) -> str:
        return self._text(utils.strip_pad(target, self.tgt_dict.pad()), unknown=NO_HYPOTHESIS_HAS_THIS)

    def _text(self, tokens: Tensor, *, unknown: str) -> str:
        text = self.tgt_dict.string(tokens.int().cpu(), self._scoring.eval_scorer_remove_bpe, unk_string=unknown)
        return text if self._tokenizer is None else self._tokenizer.decode(text)


def _check_no_flags_of_eval_bleu(cfg: TranslationConfig) -> None:
    """Refuse the flags by which fairseq's ``translation`` decodes, with the flag to take instead."""
    own_names = {one.name for one in fields(EvalScorerConfig)}
    for one in fields(TranslationConfig):
        if one.name.startswith("eval_bleu_") and getattr(cfg, one.name) != one.default:
            own = one.name.replace("eval_bleu", "eval_scorer")
            flag, own_flag = flag_of(one.name), flag_of(own)
            remedy = f"give {own_flag}" if own in own_names else "leave it out"
            raise UserError(f"{flag} is of --task translation: {remedy} with --task scored_translation")


def _generation_arguments(text: str) -> Namespace:
    """Parse ``--eval-scorer-args`` by the types of fairseq's flags. Building the generator checks the values."""
    flag = "--eval-scorer-args"
    try:
        given = json.loads(text)
    except json.JSONDecodeError:
        given = None
    if not isinstance(given, dict):
        raise UserError(f"{flag} '{text}': give a JSON object, such as {flag} '{{\"beam\": 4}}'")
    unknown = given.keys() - GENERATION_ARGUMENTS
    if unknown:
        raise UserError(
            f"{flag}: generation while training has no argument {sorted(unknown)[0]}; it has "
            f"{', '.join(sorted(GENERATION_ARGUMENTS))}"
        )
    config = OmegaConf.structured(GenerationConfig)
    for name, value in given.items():
        try:
            config[name] = value
        except OmegaConfBaseException as error:
            raise UserError(f"{flag}: {name}: {str(error).splitlines()[0]}") from error
        if remedy := remedy_of_value(name, config[name]):
            raise UserError(f"{flag}: {name} {value}: {remedy}")
    return Namespace(**{name: config[name] for name in given})


def _check_lengths(generator: SequenceGenerator, *, shortest: int, longest: int) -> None:
    """Refuse limits that exclude each other for sources of these lengths. fairseq refuses them only as it decodes."""
    if not math.isfinite(generator.max_len_a * longest + generator.max_len_b):
        raise UserError(f"--eval-scorer-args: max_len_a {generator.max_len_a}: give a smaller number")
    by_flags = shortest if generator.match_source_len else int(generator.max_len_a * shortest + generator.max_len_b)
    allowed = min(by_flags, generator.max_len - 1)
    if generator.min_len > allowed:
        flags = "match_source_len allows" if generator.match_source_len else "max_len_a and max_len_b allow"
        raise UserError(
            f"--eval-scorer-args: min_len {generator.min_len} is above the {allowed} that {flags} for a source of "
            f"{shortest} tokens"
        )
