"""fairseq plugins: recurrent models, and output layers that work in any model.

Importing the package registers everything with fairseq; ``--user-dir fairseq_plugins`` does so in
the host's commands.
"""

import logging

logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)  # asks for tensorboardX when imported

from fairseq_plugins.host import mend_host  # noqa: E402

mend_host()

from fairseq_plugins.criterions import noise_contrastive, regularized_cross_entropy  # noqa: E402, F401
from fairseq_plugins.models import gated_lm, recurrent_encdec, recurrent_lm, transformer  # noqa: E402, F401
from fairseq_plugins.optim import l2_adam, nt_asgd  # noqa: E402, F401
from fairseq_plugins.scoring import rouge_scorer  # noqa: E402, F401
from fairseq_plugins.tasks import stateful_lm  # noqa: E402, F401

# a part of a model may not declare a flag that stands beside it on the command line
for _model in (gated_lm, recurrent_encdec, recurrent_lm, transformer):
    _model.FLAGS.stand_beside(
        (regularized_cross_entropy.RegularizedCrossEntropyConfig, noise_contrastive.NoiseContrastiveConfig),
        stateful_lm.StatefulLanguageModelingConfig,
        (l2_adam.L2AdamConfig, nt_asgd.NTASGDConfig),
    )
