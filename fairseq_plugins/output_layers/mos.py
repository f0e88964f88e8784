"""Mixture of softmaxes of the last layer."""

from typing import List, Optional

from fairseq_plugins.output_layers.base import OUTPUT_LAYERS
from fairseq_plugins.output_layers.mixture import MixtureOutput


@OUTPUT_LAYERS.register("mos")
class MixtureOfSoftmaxes(MixtureOutput):
    """Mixture of softmaxes that all read the last layer (Yang et al. 2018).

    Raises:
        ValueError: if ``--experts-per-layer`` names another layer.
    """

    default_mask = "per-expert"

    @staticmethod
    def default_experts(num_layers: int) -> List[int]:
        return [0] * (num_layers - 1) + [4]

    @classmethod
    def read_experts(cls, text: Optional[str], *, num_layers: int) -> List[int]:
        experts = super().read_experts(text, num_layers=num_layers)
        if any(experts[:-1]):
            raise ValueError(
                f'--experts-per-layer "{text}": mos reads the last layer only, so all numbers but the last are 0; '
                "take --output-layer doc to read other layers"
            )
        return experts
