"""A training that is resumed inside an epoch logs how long it has been running.

Mends: the host's clock ``wall`` stands still from then on, because loaded meters have not been started.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_the_host_alone_lets_the_clock_stand`` passes.
"""

from typing import Any, Callable, Dict

from fairseq.logging import metrics
from fairseq.logging.meters import StopwatchMeter

from fairseq_plugins.host.wrapping import wrap


def mend() -> None:
    """Wrap the host's ``metrics.load_state_dict``."""
    wrap(metrics, "load_state_dict", _start_the_clock)


def _start_the_clock(load_state_dict: Callable[..., None], state_dict: Dict[str, Any]) -> None:
    load_state_dict(state_dict)
    clock = metrics.get_meter("default", "wall")
    if isinstance(clock, StopwatchMeter):
        clock.start()
