"""``--bf16`` trains on the GPU or CPU at hand.

Mends: the host takes --bf16 for a TPU's, where it needs torch_xla.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_the_host_alone_takes_bf16_for_a_tpu`` passes.
"""

import logging
from importlib.util import find_spec
from typing import Any, Callable

from fairseq.distributed import utils as distributed_utils
from omegaconf import DictConfig

from fairseq_plugins.host.wrapping import wrap

logger = logging.getLogger(__name__)


def mend() -> None:
    """Wrap the host's ``call_main``, through which all of its commands run."""
    wrap(distributed_utils, "call_main", _leave_the_tpu_out)


def _leave_the_tpu_out(call_main: Callable[..., Any], cfg: DictConfig, *args: Any, **kwargs: Any) -> Any:
    if cfg.common.bf16 and find_spec("torch_xla") is None:
        cfg.common.tpu = cfg.distributed_training.tpu = False  # the second has been read from the first
        logger.info("torch_xla is not installed: --bf16 trains without a TPU")
    return call_main(cfg, *args, **kwargs)
