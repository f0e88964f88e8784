"""Presets: the hyper-parameters that an architecture stands for, one file a family."""

from typing import Dict

from fairseq_plugins.models.presets import (
    awd,
    encoder_decoders,
    fpnn,
    gated,
    major_minor,
    mixtures,
    mogrifier,
    rhn,
    transformers,
    zaremba,
)
from fairseq_plugins.models.presets.preset import Preset, Value, apply_preset, command_line

LANGUAGE_MODELS: Dict[str, Preset] = {
    **awd.ARCHITECTURES,
    **mixtures.ARCHITECTURES,
    **zaremba.ARCHITECTURES,
    **rhn.ARCHITECTURES,
    **mogrifier.ARCHITECTURES,
    **fpnn.ARCHITECTURES,
    **major_minor.ARCHITECTURES,
}
"""Architectures of the recurrent language models."""

GATED_LANGUAGE_MODELS: Dict[str, Preset] = gated.ARCHITECTURES
"""Architectures that put a gate on trained language models."""

ARCHITECTURES: Dict[str, Preset] = {
    **LANGUAGE_MODELS,
    **GATED_LANGUAGE_MODELS,
    **encoder_decoders.ARCHITECTURES,
    **transformers.ARCHITECTURES,
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
