"""How a command may end, whatever it is given."""

import json
import math
import re
from pathlib import Path
from typing import Dict, List

from forks import Ended
from left_files import contents
from readings import STATISTICS


def check_end(ended: Ended, *, told: str) -> None:
    """It ends soon, with status 0, or with a line that says what is wrong: 2, or 1 of data-prep.

    Args:
        told: what the line begins with.
    """
    assert not ended.hung, "it hangs"
    assert "Traceback" not in ended.err and "weights_only" not in ended.err, ended.err
    if ended.status != 0:
        assert ended.status == (1 if told.startswith("error") else 2), ended
        assert ended.err.endswith("\n") and ended.err.split("\n")[-2].startswith(told), ended.err


def check_figures(ended: Ended) -> None:
    """What is printed as JSON can be read, and figures in it are numbers or null."""
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
    """What was printed or logged as results, without speeds."""
    shown = [line for line in ended.out.split("\n") if "second" not in line and "| INFO |" not in line]
    return shown + re.findall(r"Perplexity: \S+|\| loss \S+ \| ppl \S+", ended.out + ended.err)


def _refuse(constant: str):
    raise AssertionError(f"{constant} is no JSON")
