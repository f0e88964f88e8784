"""Presets: the hyper-parameters of each architecture."""

from typing import Dict

from fairseq_plugins.models.presets import language_models, translation
from fairseq_plugins.models.presets.preset import Preset, Value, apply_preset, command_line

LANGUAGE_MODELS: Dict[str, Preset] = {
    **language_models.AWD_ARCHITECTURES,
    **language_models.MIXTURE_ARCHITECTURES,
    **language_models.ZAREMBA_ARCHITECTURES,
    **language_models.RHN_ARCHITECTURES,
    **language_models.MOGRIFIER_ARCHITECTURES,
    **language_models.FPNN_ARCHITECTURES,
    **language_models.MAJOR_MINOR_ARCHITECTURES,
}
"""Architectures of the recurrent language models."""

GATED_LANGUAGE_MODELS: Dict[str, Preset] = language_models.GATED_ARCHITECTURES
"""Architectures of gates on trained language models."""

ARCHITECTURES: Dict[str, Preset] = {
    **LANGUAGE_MODELS,
    **GATED_LANGUAGE_MODELS,
    **translation.ENCODER_DECODER_ARCHITECTURES,
    **translation.TRANSFORMER_ARCHITECTURES,
    **language_models.TRANSFORMER_LM_ARCHITECTURES,
}
"""All values of ``--arch`` that this package adds, with their presets."""

__all__ = [
    "ARCHITECTURES",
    "GATED_LANGUAGE_MODELS",
    "LANGUAGE_MODELS",
    "Preset",
    "Value",
    "apply_preset",
    "command_line",
]
