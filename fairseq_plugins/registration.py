"""Registers everything with fairseq: patches, models, tasks, criteria, optimizers, scorers, and installed parts."""

import logging

_ROOT = logging.getLogger()
_ROOT_LEVEL, _ROOT_HANDLERS = _ROOT.level, [*_ROOT.handlers]  # one of fairseq's models sets DEBUG on import
logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)  # asks for tensorboardX on import

from fairseq_plugins.fairseq_patches import apply_patches  # noqa: E402

apply_patches()

from fairseq_plugins.criterions import noise_contrastive, regularized_cross_entropy  # noqa: E402, F401
from fairseq_plugins.metrics import rouge  # noqa: E402, F401
from fairseq_plugins.models import gated_lm, recurrent_encdec, recurrent_lm, transformer, transformer_lm  # noqa: E402, F401
from fairseq_plugins.optim import adaptive, nt_asgd  # noqa: E402, F401
from fairseq_plugins.own_parts import import_installed  # noqa: E402
from fairseq_plugins.tasks import scored_translation, stateful_lm  # noqa: E402, F401

import_installed()

_ROOT.setLevel(_ROOT_LEVEL)
_ROOT.handlers[:] = _ROOT_HANDLERS
