"""Direct Output Connection: a mixture of softmaxes of any layers."""

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence

import torch
from fairseq.data import Dictionary
from torch import Tensor, nn

from fairseq_plugins.flags.values import check_not_negative
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS
from fairseq_plugins.output_layers.mixture import MixtureOptions, MixtureOutput


@dataclass
class DirectOutputConnectionOptions(MixtureOptions):
    """Flags of DOC."""

    expert_warmup: int = field(
        default=0,
        metadata={
            "help": "number of updates from the start in which only the experts of the last layer take part, so "
            "that an attention is learned before experts below it compete (default: 0, as in the paper)"
        },
    )


@OUTPUT_LAYERS.register("doc")
class DirectOutputConnection(MixtureOutput):
    """Mixture of softmaxes that read any layers (Takase et al. 2018).

    The biases a_j start at zero, unless the model initialises all its parameters itself, and one latent dropout mask
    serves all experts of a row, as in the published program.

    During ``--expert-warmup`` the prior of the experts of lower layers is zero. Without it an encoder-decoder may
    never learn its attention: experts below it soon are good language models, the prior sends most words to them,
    and the attention's experts are left with too little gradient (results/multi30k).

    Raises:
        ValueError: if there is a warm-up but no expert reads the last layer.
    """

    Options = DirectOutputConnectionOptions
    default_mask = "shared"

    def __init__(
        self,
        *,
        dictionary: Dictionary,
        layer_widths: Sequence[int],
        shared_weight: Optional[nn.Parameter],
        options: DirectOutputConnectionOptions,
    ):
        super().__init__(dictionary=dictionary, layer_widths=layer_widths, shared_weight=shared_weight, options=options)
        self.save_setting("experts_text", flag="--experts-per-layer", value=" ".join(map(str, self.experts_per_layer)))
        for linear in self.latents:
            nn.init.zeros_(linear.bias)
        check_not_negative(options.expert_warmup, flag="--expert-warmup")
        if options.expert_warmup > 0 and self.experts_per_layer[-1] == 0:
            raise ValueError("--expert-warmup needs an expert on the last layer: see --experts-per-layer, or give 0")
        self.expert_warmup = options.expert_warmup
        reads_lower = torch.arange(self.num_experts) < sum(self.experts_per_layer[:-1])
        self.register_buffer("reads_lower", reads_lower, persistent=False)
        # saved, because a checkpoint of the warm-up is evaluated as it was trained; 0 or 1, which every precision holds
        # (and between them in averages over its end)
        self.register_buffer("warmed_up", torch.zeros(()))

    def _load_from_state_dict(self, state_dict: Dict[str, Tensor], prefix: str, *args: Any, **kwargs: Any) -> None:
        state_dict.setdefault(f"{prefix}warmed_up", torch.ones(()))  # older checkpoints knew no warm-up
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    @staticmethod
    def default_experts(num_layers: int) -> List[int]:
        return [0] * (num_layers - 2) + [1, 3]

    def set_num_updates(self, num_updates: int) -> None:
        """Called by the host before every update; fine-tuning, which counts from zero, has no second warm-up.

        The updates of a gate are none of its base model's, which is in evaluation mode.
        """
        if self.training and num_updates >= self.expert_warmup:
            self.warmed_up.fill_(1)

    def prior_scores(self, layers: Sequence[Tensor]) -> Tensor:
        scores = super().prior_scores(layers)
        if self.expert_warmup > 0:
            scores = scores.masked_fill(self.reads_lower & (self.warmed_up == 0), float("-inf"))
        return scores
