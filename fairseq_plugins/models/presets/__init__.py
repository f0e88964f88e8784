"""Presets: the hyper-parameters of each architecture."""

from typing import Dict

from fairseq_plugins.models.presets.language_models import (
    GATED_LANGUAGE_MODELS,
    LANGUAGE_MODELS,
    TRANSFORMER_LM_ARCHITECTURES,
)
from fairseq_plugins.models.presets.preset import (
    Preset,
    TyingFlags,
    Value,
    apply_preset,
    as_arguments,
    register_presets,
)
from fairseq_plugins.models.presets.translation import ENCODER_DECODER_ARCHITECTURES, TRANSFORMER_ARCHITECTURES

ARCHITECTURES: Dict[str, Preset] = {
    **LANGUAGE_MODELS,
    **GATED_LANGUAGE_MODELS,
    **ENCODER_DECODER_ARCHITECTURES,
    **TRANSFORMER_ARCHITECTURES,
    **TRANSFORMER_LM_ARCHITECTURES,
}
"""All values of ``--arch`` that this package adds, with their presets."""

__all__ = [
    "ARCHITECTURES",
    "GATED_LANGUAGE_MODELS",
    "LANGUAGE_MODELS",
    "Preset",
    "TyingFlags",
    "Value",
    "apply_preset",
    "as_arguments",
    "register_presets",
]
