"""A training that ended by ``--patience`` or ``--max-update`` is not trained on when it is started again.

Mends: the host looks only after an update, and so makes one more, or one more epoch.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_the_host_alone_trains_on`` passes.
"""

import logging
from typing import Any, Callable, Dict, Optional, Tuple

from fairseq import checkpoint_utils
from fairseq.data.iterators import EpochBatchIterator
from fairseq.dataclass.configs import CheckpointConfig
from fairseq.trainer import Trainer

from fairseq_plugins.host.resumed_validation import PATIENCE
from fairseq_plugins.host.wrapping import wrap

logger = logging.getLogger(__name__)

_NO_EPOCH = -1  # 0 is without limit


def mend() -> None:
    """Wrap the host's reading of a training's state."""
    wrap(checkpoint_utils, "load_checkpoint", _train_no_more)


def _train_no_more(
    load_checkpoint: Callable[..., Tuple[Optional[Dict[str, Any]], EpochBatchIterator]],
    cfg: CheckpointConfig,
    trainer: Trainer,
    **options: Any,
) -> Tuple[Optional[Dict[str, Any]], EpochBatchIterator]:
    state, iterator = load_checkpoint(cfg, trainer, **options)
    reason = _why_finished(state or {}, cfg, trainer)
    if reason is not None:
        logger.info(f"the training in {cfg.save_dir} is finished: {reason}; to train on, give a larger one")
        trainer.cfg.optimization.max_epoch = _NO_EPOCH
    return state, iterator


def _why_finished(state: Dict[str, Any], cfg: CheckpointConfig, trainer: Trainer) -> Optional[str]:
    num_updates, max_update = trainer.get_num_updates(), trainer.cfg.optimization.max_update
    if 0 < max_update <= num_updates:
        return f"it has made {num_updates} updates, --max-update is {max_update}"
    num_bad = 0 if cfg.reset_optimizer or cfg.reset_meters else state.get(PATIENCE, {}).get("num_runs", 0)
    if num_updates > 0 and 0 < cfg.patience <= num_bad:
        return f"the last {num_bad} validations were no better, --patience is {cfg.patience}"
    return None
