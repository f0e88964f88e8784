"""The end of processes whose partner hangs; tests/integration/test_lost_processes.py has it happen."""

import inspect
import signal

from fairseq.distributed import DistributedTimeoutWrapper
from torch import nn


def test_the_limit_ends_the_process_at_once():
    wrapper = DistributedTimeoutWrapper(nn.Identity(), timeout=0)
    assert wrapper.signal == signal.SIGTERM and wrapper.timeout == 0
    assert DistributedTimeoutWrapper(nn.Identity(), 0, signal.SIGUSR1).signal == signal.SIGUSR1


def test_the_host_alone_interrupts_it():
    init = inspect.unwrap(DistributedTimeoutWrapper.__init__)
    assert inspect.signature(init).parameters["signal"].default == signal.SIGINT
