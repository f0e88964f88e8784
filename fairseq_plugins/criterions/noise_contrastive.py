"""Noise-contrastive estimation (Mnih & Teh 2012): training without sums over the vocabulary.

The model learns to tell each target from k noise words, so that an update reads only the rows of the output matrix for
these words.

Shapes: B batch, T time, V vocabulary.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple, Union, get_args

import torch
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import FairseqTask
from omegaconf import II
from torch import Tensor, distributed, nn

from fairseq_plugins.criterions.regularized_cross_entropy import (
    RegularizedCrossEntropy,
    check_architecture,
    log_mean,
    read_at_once,
)
from fairseq_plugins.data.tasks import training_counts
from fairseq_plugins.options import OnOff, UserError, check_at_least_one, choices
from fairseq_plugins.output_layers.scores import Gradients, Hits, Noise


class UnigramNoise:
    """The unigram distribution q(w) of a text. Words that do not occur count once.

    Words such as ``<s>`` and ``<pad>`` are therefore drawn now and then and learn to be improbable, as they do under
    maximum likelihood. If they were never drawn, they would keep their initial probability.

    Args:
        counts: of the words in the text, (V), int64.
        num_samples: k, the number of noise words of a target.
    """

    def __init__(self, counts: Tensor, *, num_samples: int):
        smoothed = counts.clamp_min(1).double()
        probs = smoothed / smoothed.sum()
        self._cumulative = probs.cumsum(0)
        self._log_expected = torch.log(probs) + math.log(num_samples)

    def draw(self, shape: Sequence[int], *, device: torch.device) -> Tensor:
        """Draw words, int64, of the given shape, with the device's default generator."""
        self._cumulative = self._cumulative.to(device)
        numbers = torch.rand(tuple(shape), dtype=torch.double, device=device)
        # the last sum is 1 up to rounding
        return torch.searchsorted(self._cumulative, numbers, right=True).clamp_(max=len(self._cumulative) - 1)

    def log_expected(self, words: Tensor) -> Tensor:
        """log(k q(w)) of words of any shape, in float64: the log of the expected number of draws for a target."""
        self._log_expected = self._log_expected.to(words.device)
        return self._log_expected[words]


NoiseSharing = choices(["none", "batch"])
Normaliser = choices(["fixed", "learned"])
AccidentalHits = choices(get_args(Hits))


MOST_WORDS = 2**28
"""The largest number of noise words of an update. They take 2 GiB."""


@dataclass
class NoiseContrastiveConfig(FairseqDataclass):
    """Flags of ``--criterion noise_contrastive``."""

    noise_samples: int = field(default=25, metadata={"help": "number of noise words (k) for each target"})
    noise_sharing: NoiseSharing = field(
        default="none",
        metadata={
            "help": "none: every target has its own noise words; batch: all targets of a batch share them, so that "
            "their scores are one matrix product and there can be many"
        },
    )
    accidental_hits: AccidentalHits = field(
        default="left-out",
        metadata={
            "help": "what to do with a noise word that equals the target. counted: scores become log-probabilities, as "
            "in the paper; left-out: they become log-odds, log(p / (1 - p)), which differ where p is large"
        },
    )
    normaliser: Normaliser = field(
        default="fixed",
        metadata={
            "help": "log Z in the score s(w) = logit(w) - log Z. fixed: the logarithm of the vocabulary's size, which "
            "normalises a model whose logits are zero; learned: one weight that starts there"
        },
    )
    sparse_gradients: OnOff = field(
        default="on",
        metadata={
            "help": "on: gradients of embeddings and output matrix hold only the rows of words that occur. This "
            "needs one process, 32 bits or --amp, and --optimizer sgd, adagrad or damped_adagrad without momentum or "
            "weight decay. off: they hold all rows"
        },
    )
    train_subset: str = II("dataset.train_subset")
    sentence_avg: bool = II("optimization.sentence_avg")
    fp16: bool = II("common.fp16")
    bf16: bool = II("common.bf16")


@register_criterion("noise_contrastive", dataclass=NoiseContrastiveConfig)
class NoiseContrastive(FairseqCriterion):
    """-log sigma(s(w) - log k q(w)) - sum over k noise words n of log(1 - sigma(s(n) - log k q(n))) of each target w.

    s(w) = logit(w) - log Z is the score of a word. The noise distribution q is the unigram distribution of the training
    text (:class:`UnigramNoise`). Noise is drawn with torch's generator, which fairseq seeds for every update.

    The minimum is at s = log p. If accidental hits are left out it is at s = log(p / (1 - p)): the more probable a
    word, the more of its noise is left out, which makes confident predictions more confident. The paper sets log Z = 0.
    A model without biases would have to lower all logits by log V first and has no parameter for that, so log Z is
    fixed at log V here, or starts there.

    In training ``loss`` is this loss in nats, there is no ``ppl``, and ``log_normaliser`` is log Z if it is learned. In
    evaluation the distribution is normalised, and ``loss`` is the plain NLL and ``ppl`` its exponential.

    Raises:
        UserError: if ``--noise-samples`` is below 1, or sparse gradients do not fit the run.
    """

    validation_metrics: ClassVar[Mapping[str, bool]] = RegularizedCrossEntropy.validation_metrics

    def __init__(
        self,
        task: FairseqTask,
        noise_samples: int = 25,
        noise_sharing: str = "none",
        accidental_hits: Hits = "left-out",
        normaliser: str = "fixed",
        sparse_gradients: str = "on",
        train_subset: str = "train",
        sentence_avg: bool = False,
        fp16: bool = False,
        bf16: bool = False,
    ):
        super().__init__(task)
        self.num_samples = check_at_least_one(noise_samples, flag="--noise-samples")
        self.noise_sharing = noise_sharing
        self.accidental_hits = accidental_hits
        self.gradients: Gradients = "sparse" if sparse_gradients == "on" else "dense"
        if self.gradients == "sparse":
            _check_training(is_16_bit=fp16 or bf16)
        self.train_subset = train_subset
        self.sentence_avg = sentence_avg
        self.normalised = RegularizedCrossEntropy(task, sentence_avg=sentence_avg)
        dictionary = task.target_dictionary
        assert dictionary is not None
        self.log_vocab_size = math.log(len(dictionary))
        # log Z - log V, a small number, which keeps its precision in 16 bits. Its shape is (1), because --ddp-backend
        # legacy_ddp cannot flatten a scalar.
        self.normaliser_shift = nn.Parameter(torch.zeros(1)) if normaliser == "learned" else None

    def load_state_dict(self, state_dict: Optional[Mapping[str, Any]], *args: Any, **kwargs: Any) -> Any:
        """Resume from a checkpoint. Without a saved normaliser fairseq passes None, and the initial value stays.

        With another ``--normaliser`` than before the optimiser has other parameters, and its state has to be reset.
        """
        return super().load_state_dict(self.state_dict() if state_dict is None else state_dict, *args, **kwargs)

    @property
    def log_normaliser(self) -> Union[float, Tensor]:
        """log Z, a number, or (1) in float64 if it is learned."""
        shift = self.normaliser_shift
        return self.log_vocab_size if shift is None else self.log_vocab_size + shift.double()

    def forward(
        self, model: nn.Module, sample: Dict[str, Any], reduce: bool = True
    ) -> Tuple[Tensor, int, Dict[str, Any]]:
        """See :meth:`RegularizedCrossEntropy.forward`.

        Raises:
            UserError: if the model or its output layer has no such loss, or there is no training text to count.
        """
        if not self.training:
            return self.normalised(model, sample, reduce)
        assert reduce, "there is no loss of single tokens in training"
        check_architecture(model, criterion="noise_contrastive")
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                module.sparse = self.gradients == "sparse"
        target, num_tokens = sample["target"], int(sample["ntokens"])
        sample_size = target.size(0) if self.sentence_avg else num_tokens
        loss, _ = model(
            **sample["net_input"],
            target=target,
            token_weights=None if num_tokens == target.numel() else target.ne(self.padding_idx),
            noise=self.noise(target),
        )
        logged = {
            "objective": loss.detach(),
            "ntokens": num_tokens,
            "nsentences": target.size(0),
            "sample_size": sample_size,
        }
        if isinstance(self.log_normaliser, Tensor):
            logged["log_normaliser"] = self.log_normaliser.detach().float().sum() * num_tokens
        return loss, sample_size, logged

    def noise(self, target: Tensor) -> Noise:
        """Draw noise for targets (B, T).

        Raises:
            UserError: if the noise has more words than :data:`MOST_WORDS`.
        """
        distribution = self.distribution
        shape = (self.num_samples,) if self.noise_sharing == "batch" else (*target.shape, self.num_samples)
        if math.prod(shape) > MOST_WORDS:
            raise UserError(
                f"--noise-samples {self.num_samples}: an update would draw {math.prod(shape):,} words, and "
                f"{MOST_WORDS:,} are the most; give fewer, or --noise-sharing batch"
            )
        words = distribution.draw(shape, device=target.device)
        return Noise(
            words=words,
            offsets=distribution.log_expected(words) + self.log_normaliser,
            target_offsets=distribution.log_expected(target) + self.log_normaliser,
            gradients=self.gradients,
            hits=self.accidental_hits,
        )

    @cached_property
    def distribution(self) -> UnigramNoise:
        """The noise distribution. The training text is counted at the first use.

        Raises:
            UserError: if there is no training text to count.
        """
        counts = training_counts(self.task, subset=self.train_subset)
        if counts is None or not counts.any():
            raise UserError(
                "--criterion noise_contrastive draws noise by the word counts of the training text, and there is "
                "none beside this data: prepare the corpus with it"
            )
        return UnigramNoise(counts, num_samples=self.num_samples)

    @classmethod
    def reduce_metrics(cls, logging_outputs: List[Dict[str, Any]]) -> None:
        """Log means over the tokens of all processes."""
        if not any("objective" in log for log in logging_outputs):
            RegularizedCrossEntropy.reduce_metrics(logging_outputs)
            return
        logging_outputs = read_at_once(logging_outputs)
        log_mean("objective", logging_outputs, shown_as="loss")
        log_mean("log_normaliser", logging_outputs)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True


def _check_training(*, is_16_bit: bool) -> None:
    """Check that a run can take sparse gradients. An optimiser that cannot fails at the first update."""
    if is_16_bit:
        raise UserError(
            "--fp16 and --bf16 copy gradients into dense ones: give --sparse-gradients off, or --amp in their place"
        )
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        raise UserError("several processes can only add up dense gradients: give --sparse-gradients off")
