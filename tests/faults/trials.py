"""How commands are tried: how many faults, and how a command may end."""

import json
import math
import re
import zlib
from pathlib import Path
from typing import Callable, Dict, List

import hypothesis
from command_table import STATISTICS, contents
from forks import Ended


def faults(config, name: str, *, share: float) -> Callable[..., Callable[..., None]]:
    """Decorator of a check, which is then called with strategies of its arguments.

    It runs a share of ``--faults``, one at least. The cases are the same in every run with one ``--fault-seed``, and
    others for another name. The simplest case, of empty texts and first choices, with which hypothesis begins, is left
    out.

    Args:
        config: of pytest.
        name: of what is tried.
    """
    number = max(1, round(config.getoption("--faults") * share))

    def decorate(check):
        def run(*strategies):
            simplest = True

            @hypothesis.seed(zlib.crc32(name.encode()) + config.getoption("--fault-seed"))
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


FAIRSEQ_FRAME = re.compile(r'"[^"]*/site-packages/(fairseq|fairseq_cli|torch|numpy)/')


def is_of_fairseq(ended: Ended) -> bool:
    """Tell whether fairseq, or a library that it calls, ended it by an error with a message and a traceback."""
    place = ended.err.rpartition("\n  File ")[2]
    is_clear = re.search(r"^([\w.]+Error|Exception): .+", place, re.M)  # its message may have several lines
    return ended.status == 1 and bool(is_clear and FAIRSEQ_FRAME.match(place))


def check_end(ended: Ended, *, told: str) -> None:
    """It ends soon, with status 0, or with a line that says what is wrong: 2, or 1 of data-prep.

    An error of fairseq keeps its traceback.

    Args:
        told: what the line begins with.
    """
    assert not ended.hung, "it hangs"
    assert "weights_only" not in ended.err, ended.err
    if is_of_fairseq(ended):
        return
    assert "Traceback" not in ended.err, ended.err
    if ended.status != 0:
        assert ended.status == 2 or (told.startswith("error") and ended.status == 1), ended
        assert ended.err.endswith("\n") and ended.err.split("\n")[-2].startswith(told), ended.err


def check_figures(ended: Ended) -> None:
    """Printed JSON can be read, and its figures are numbers or null."""
    for line in ended.out.split("\n"):
        if line.startswith("{"):
            json.loads(line, parse_constant=_refuse)
    for number in re.findall(r"^perplexity\s+(\S+)$", ended.out, re.M):
        assert not math.isnan(float(number.replace(",", ""))), ended.out


def check_files(before: Dict[str, str], folder: Path) -> None:
    """No file was changed or lost, but what is kept to be reused; only locks and their owners are left aside."""
    after = contents(folder)
    kept = {name: digest for name, digest in before.items() if name != STATISTICS}
    assert {name: after.get(name) for name in kept} == kept
    new = [Path(name) for name in set(after) - set(before)]
    assert not [path for path in new if path.name.startswith(".") and path.suffix not in (".lock", ".owner")]


def figures(ended: Ended) -> List[str]:
    """Printed or logged results, without speeds."""
    shown = [line for line in ended.out.split("\n") if "second" not in line and "| INFO |" not in line]
    return shown + re.findall(r"Perplexity: \S+|\| loss \S+ \| ppl \S+", ended.out + ended.err)


def _refuse(constant: str):
    raise AssertionError(f"{constant} is no JSON")
