"""A flag whose value is ``nan`` is refused.

Mends: the host takes it for a number, so that ``--dropout nan`` drops nothing and ``--clip-norm nan`` clips nothing.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_the_host_alone_takes_nan_for_a_number`` passes.
"""

import argparse
import math
from typing import Any, Callable, Dict, Iterator, Tuple

from fairseq import options

from fairseq_plugins.host.wrapping import wrap


def mend() -> None:
    """Wrap the host's ``parse_args_and_arch``, with which all of its commands read their flags."""
    wrap(options, "parse_args_and_arch", _refuse_nan)


def _refuse_nan(
    parse_args_and_arch: Callable[..., Any], parser: argparse.ArgumentParser, *args: Any, **kwargs: Any
) -> Any:
    """The values of all flags; the command ends with one line and status 2 where one is no number."""
    parsed = parse_args_and_arch(parser, *args, **kwargs)
    values = vars(parsed[0] if isinstance(parsed, tuple) else parsed)
    for name, number in _numbers(values):
        if math.isnan(number):
            parser.exit(2, f"{parser.prog}: error: --{name.replace('_', '-')} nan: give a number\n")
    return parsed


def _numbers(values: Dict[str, Any]) -> Iterator[Tuple[str, float]]:
    for name, value in values.items():
        for part in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(part, float):
                yield name, part
