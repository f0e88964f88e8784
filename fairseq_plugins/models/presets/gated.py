"""Gates on trained language models, of Takase, Suzuki & Nagata 2017.

Dimension, dropout and learning rates are the paper's, the rest is that of the published program, whose Adam adds its
epsilon before the second moment is corrected.
"""

from typing import Dict

from fairseq_plugins.models.presets.language_model_training import SUMMED_STEPS
from fairseq_plugins.models.presets.preset import Preset, Value

NUM_EPOCHS = 5
_GATE = dict(output_gate="iog", gate_dim=300, gate_dropout=0.5, gate_init_range=0.05)

# the rate is 0.001 / sqrt(epoch)
_TRAINING = {
    **SUMMED_STEPS,
    "optimizer": "l2_adam",
    "adam-eps-added": "before-correction",
    "lr": ",".join(str(0.001 / epoch**0.5) for epoch in range(1, NUM_EPOCHS + 1)),
    "lr-scheduler": "fixed",
    "weight-decay": 1e-6,
    "clip-norm": 1.0,
    "max-epoch": NUM_EPOCHS,
}

ON_AWD: Dict[str, Value] = {"clip-norm": 0.1, "gate-init-range": 0.01}
"""Flags of ``fairseq-train`` that differ for a gate on AWD-LSTM, as in the published program."""

ARCHITECTURES: Dict[str, Preset] = {
    name: Preset(_GATE, _TRAINING) for name in ("gated_lm", "gated_lm_ptb", "gated_lm_wt2")
}
"""Values of ``--arch`` and their presets."""
