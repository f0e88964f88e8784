"""How many faults are tried."""

import zlib
from typing import Callable

import hypothesis


def faults(config, name: str, *, share: float) -> Callable[..., Callable[..., None]]:
    """Decorator of a check, which is then called with strategies of its arguments.

    It runs a share of ``--faults``, one at least; the cases are the same in every run, and others for another name. The
    simplest case, of empty texts and first choices, with which hypothesis begins, is left out.

    Args:
        config: of pytest.
        name: of what is tried.
    """
    number = max(1, round(config.getoption("--faults") * share))

    def decorate(check):
        def run(*strategies):
            simplest = True

            @hypothesis.seed(zlib.crc32(name.encode()))
            @hypothesis.settings(
                max_examples=number + 1,
                database=None,
                deadline=None,
                suppress_health_check=list(hypothesis.HealthCheck),
                phases=[hypothesis.Phase.generate],
                print_blob=False,
            )
            @hypothesis.given(hypothesis.strategies.tuples(*strategies))
            def each(arguments):
                nonlocal simplest
                if simplest:
                    simplest = False
                    return
                hypothesis.note(repr(arguments))
                check(*arguments)

            each()

        return run

    return decorate
