"""A timer that finds half a second."""

from types import SimpleNamespace

from torch.utils.benchmark import Timer


class HalfASecond(Timer):
    """Torch's timer, which runs its statement a few times and says that it took half a second."""

    def blocked_autorange(self, callback=None, min_run_time=0.2):
        self.timeit(1)
        return SimpleNamespace(median=0.5)
