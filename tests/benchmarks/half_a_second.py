"""A timer that always measures half a second."""

from types import SimpleNamespace

from torch.utils.benchmark import Timer


class HalfASecond(Timer):
    """torch's timer, except that it runs its statement once and reports half a second."""

    def blocked_autorange(self, callback=None, min_run_time=0.2):
        self.timeit(1)
        return SimpleNamespace(median=0.5)
