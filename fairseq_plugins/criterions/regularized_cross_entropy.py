"""Cross-entropy with the penalties of AWD-LSTM and DOC, in nats."""

import logging
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Dict, List, Mapping, Optional, Tuple

import torch
from fairseq import utils
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from fairseq.tasks import FairseqTask
from omegaconf import II
from torch import Tensor, nn

from fairseq_plugins.models.decoder import CachingDecoder
from fairseq_plugins.ops.regularizers import (
    absolute_sum,
    activation_regularization,
    half_square_sum,
    prior_balance_by_batch,
    prior_balance_by_row,
    temporal_activation_regularization,
)
from fairseq_plugins.options import UserError, check_not_negative, choices

logger = logging.getLogger(__name__)

PENALTIES = {
    "activation": "--activation-regularization",
    "temporal_activation": "--temporal-activation-regularization",
    "balance": "--balance",
    "l1": "--l1-regularization",
    "l2": "--l2-regularization",
}
"""The flag of each penalty."""

BALANCE_FORMS = {"row": prior_balance_by_row, "batch": prior_balance_by_batch}

BalanceForm = choices(sorted(BALANCE_FORMS))


@dataclass
class RegularizedCrossEntropyConfig(FairseqDataclass):
    """Flags of ``--criterion regularized_cross_entropy``."""

    label_smoothing: float = field(
        default=0.0,
        metadata={
            "help": "share of the target that is spread over all words, for every expert of a mixture, 0 <= share < 1"
        },
    )
    activation_regularization: float = field(
        default=0.0, metadata={"help": "coefficient (alpha) of the mean squared output of the last layer"}
    )
    temporal_activation_regularization: float = field(
        default=0.0,
        metadata={"help": "coefficient (beta) of the mean squared change of the last layer's output from step to step"},
    )
    balance: float = field(
        default=0.0, metadata={"help": "coefficient (lambda_beta) of the imbalance between the softmaxes of a mixture"}
    )
    balance_form: BalanceForm = field(
        default="row",
        metadata={
            "help": "row: prior mass per batch row, as in the program published with DOC; batch: prior mass of the "
            "whole batch, as in the paper (about 1 / (experts - 1) of row)"
        },
    )
    l1_regularization: float = field(
        default=0.0, metadata={"help": "coefficient of the sum of the absolute values of all matrices that learn"}
    )
    l2_regularization: float = field(
        default=0.0,
        metadata={
            "help": "coefficient of half the sum of the squares of all weights that learn, biases too; unlike "
            "--weight-decay it is clipped with the gradient of the loss"
        },
    )
    sentence_avg: bool = II("optimization.sentence_avg")


@register_criterion("regularized_cross_entropy", dataclass=RegularizedCrossEntropyConfig)
class RegularizedCrossEntropy(FairseqCriterion):
    """Mean NLL + alpha AR + beta TAR + lambda balance + L1 + L2, optionally with label smoothing.

    ``loss`` is the plain NLL of the targets in nats, and ``ppl`` its exponential. In training with
    ``--adversarial-epsilon`` the NLL is by the lowered logits. Penalties are computed in training only, and logged
    separately, without their coefficients. fairseq divides gradients by the number of tokens, or of sentences with
    ``--sentence-avg``, so the penalties are multiplied by that number.

    Raises:
        UserError: on a coefficient below zero.
    """

    validation_metrics: ClassVar[Mapping[str, bool]] = {"loss": False, "ppl": False}
    """Metrics that validation logs, and whether higher is better."""

    def __init__(
        self,
        task: FairseqTask,
        label_smoothing: float = 0.0,
        activation_regularization: float = 0.0,
        temporal_activation_regularization: float = 0.0,
        balance: float = 0.0,
        balance_form: str = "row",
        l1_regularization: float = 0.0,
        l2_regularization: float = 0.0,
        sentence_avg: bool = False,
    ):
        super().__init__(task)
        if not 0.0 <= label_smoothing < 1.0:
            raise UserError(f"--label-smoothing {label_smoothing}: give a share, 0 <= share < 1")
        self.label_smoothing = label_smoothing
        given = {
            "activation": activation_regularization,
            "temporal_activation": temporal_activation_regularization,
            "balance": balance,
            "l1": l1_regularization,
            "l2": l2_regularization,
        }
        for name, coefficient in given.items():
            check_not_negative(coefficient, flag=PENALTIES[name])
        self.coefficients = {name: coefficient for name, coefficient in given.items() if coefficient > 0}
        if balance_form != "row" and not balance:
            raise UserError(
                f"--balance-form {balance_form} has no effect without --balance: leave it out, or give both"
            )
        self.balance_penalty = BALANCE_FORMS[balance_form]
        self.sentence_avg = sentence_avg

    @classmethod
    def build_criterion(cls, cfg: Any, task: FairseqTask) -> "RegularizedCrossEntropy":
        """Build the criterion of a run, and log what its figures mean."""
        logger.info(
            "loss and ppl are the NLL in nats, without label smoothing, and its exponential; penalties are logged apart"
        )
        return super().build_criterion(cfg, task)

    def forward(
        self, model: nn.Module, sample: Dict[str, Any], reduce: bool = True
    ) -> Tuple[Tensor, int, Dict[str, Any]]:
        """Compute the loss of a batch.

        Returns:
            the loss summed over tokens, or with ``reduce=False`` the NLL of each position, (B, T), zero at padding; the
            number that fairseq divides gradients by; and the logging output.

        Raises:
            UserError: if the model does not compute losses itself, like fairseq's models, or if a penalty acts on
                frozen parameters only.
        """
        check_architecture(model, criterion="regularized_cross_entropy")
        target = sample["target"]
        mask = target.ne(self.padding_idx)
        num_tokens = int(sample["ntokens"])
        sample_size = target.size(0) if self.sentence_avg else num_tokens
        loss, extra = model(
            **sample["net_input"],
            target=target,
            token_weights=None if num_tokens == target.numel() else mask,
            label_smoothing=self.label_smoothing if self.training else 0.0,
        )
        scores = extra["scores"]
        logged = {
            "loss": scores.nll.sum(),
            "ntokens": num_tokens,
            "nsentences": target.size(0),
            "sample_size": sample_size,
        }
        if not reduce:
            return scores.nll, sample_size, logged
        if self.training:
            for name, penalty in self.penalties(model, extra, mask).items():
                if torch.is_grad_enabled() and not penalty.requires_grad:
                    raise UserError(f"{PENALTIES[name]}: what it acts on is frozen and cannot learn; leave it out")
                loss = loss + self.coefficients[name] * sample_size * penalty
                logged[name] = penalty.detach() * num_tokens
        return loss, sample_size, logged

    @property
    def penalty_factors(self) -> Dict[str, float]:
        """The coefficients above zero, by flag."""
        return {PENALTIES[name]: coefficient for name, coefficient in self.coefficients.items()}

    def penalties(self, model: nn.Module, extra: Mapping[str, Any], mask: Tensor) -> Dict[str, Tensor]:
        """The penalties with a coefficient above zero, by name. Each is a scalar: a mean, or for weights a sum.

        Raises:
            UserError: on a balance term without a mixture.
        """
        values = {}
        if "activation" in self.coefficients:
            values["activation"] = activation_regularization(extra["states"].layers[-1], mask)
        if "temporal_activation" in self.coefficients:
            values["temporal_activation"] = temporal_activation_regularization(extra["states"].top, mask)
        if "balance" in self.coefficients:
            mixture_weights = extra["scores"].mixture_weights
            if mixture_weights is None:
                raise UserError("--balance needs a mixture: take --output-layer mos or doc, or leave it out")
            values["balance"] = self.balance_penalty(mixture_weights, mask)
        if "l1" in self.coefficients:
            values["l1"] = absolute_sum(
                weight for weight in model.parameters() if weight.requires_grad and weight.dim() > 1
            )
        if "l2" in self.coefficients:
            values["l2"] = half_square_sum(weight for weight in model.parameters() if weight.requires_grad)
        return values

    @classmethod
    def reduce_metrics(cls, logging_outputs: List[Dict[str, Any]]) -> None:
        """Log means over the tokens of all processes: ``loss`` in nats, ``ppl`` = exp(loss)."""
        logging_outputs = read_at_once(logging_outputs)
        for name in ("loss", *PENALTIES):
            log_mean(name, logging_outputs)
        metrics.log_derived("ppl", lambda meters: utils.get_perplexity(meters["loss"].avg, base=math.e))

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True


def read_at_once(logging_outputs: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """The outputs with their scalars read by one transfer. fairseq would wait for a GPU at each, and add on the GPU."""
    scalars = [value for log in logging_outputs for value in log.values() if isinstance(value, Tensor)]
    on_cpu = iter(torch.stack(scalars).cpu() if scalars else ())
    return [{n: next(on_cpu) if isinstance(x, Tensor) else x for n, x in log.items()} for log in logging_outputs]


def log_mean(name: str, logging_outputs: List[Dict[str, Any]], *, shown_as: Optional[str] = None) -> None:
    """Log a sum over tokens as a mean over the tokens of all processes. Nothing is logged if all processes lack it."""
    sums = [log[name] for log in logging_outputs if name in log]
    if sums:
        num_tokens = sum(log["ntokens"] for log in logging_outputs)
        metrics.log_scalar(shown_as or name, sum(sums) / num_tokens, num_tokens, round=5)


def check_architecture(model: nn.Module, *, criterion: str) -> None:
    """Raise UserError unless the model computes losses itself. fairseq builds the criterion without the model."""
    if not isinstance(getattr(model, "decoder", None), CachingDecoder):
        raise UserError(
            f"--criterion {criterion} needs an --arch of fairseq_plugins: with this one take --criterion "
            "cross_entropy or label_smoothed_cross_entropy"
        )
