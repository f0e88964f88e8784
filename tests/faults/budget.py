"""How many faults are tried."""

from typing import Callable

import hypothesis


def faults(config, *, share: float) -> Callable[..., Callable[..., None]]:
    """Decorator of a check, which is then called with strategies of its arguments.

    It runs a share of ``--faults``, one at least; the cases are the same in every run.

    Args:
        config: of pytest.
    """
    number = max(1, round(config.getoption("--faults") * share))

    def decorate(check):
        def run(*strategies):
            @hypothesis.settings(
                max_examples=number,
                derandomize=True,
                database=None,
                deadline=None,
                suppress_health_check=list(hypothesis.HealthCheck),
                phases=[hypothesis.Phase.generate],
                print_blob=False,
            )
            @hypothesis.given(hypothesis.strategies.tuples(*strategies))
            def each(arguments):
                hypothesis.note(repr(arguments))
                check(*arguments)

            each()

        return run

    return decorate
