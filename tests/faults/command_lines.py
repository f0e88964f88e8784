"""Command lines with faults, drawn for any command by what its parser declares."""

import argparse
from typing import List, Sequence

from hypothesis import strategies as st
from typed_commands import parser_of

MODELS = {
    "lm": ["lm.pt", "mos.pt", "fpnn.pt", "rnn.pt", "gated.pt"],
    "translation": ["translator.pt"],
    "parses": ["trees.pt"],
}
"""Of each folder of data."""
TEXTS = ["text", "sources", "targets", "generated", "weights"]
TEXTS += ["parses/trees/gold.valid.trees", "parses/nbest.valid.txt"]
PLAUSIBLE = {
    "ARPA": ["ngram.arpa"],
    "ARPA,WEIGHT": ["ngram.arpa,0.3"],
    "FLAG=VALUES": ["temperature=0.9:1"],
    "LANGUAGE": ["de"],
    "NAME=DIR": ["A=history", "A=run"],
    "NAME=SAVE_DIR": ["A=run"],
    "RECIPE": ["reduced"],
    "SYSTEM": ["doc"],
    "SPLIT": ["valid", "test"],
    "WINDOW,WEIGHT": ["5,0.1"],
    "WINDOW,WEIGHT,THETA": ["5,0.1,1"],
    "WORD": ["the"],
}
"""Values that a user could mean, by the name that --help gives them; others are numbers, files and folders."""
NUMBERS = ["", " ", "-1", "0", "-0.5", "1.5", "nan", "inf", "-inf", "1e400", "1e-400", "1,5", "0x10", "١", "1_0"]
NUMBERS += ["--", "-"]
PATHS = [
    *("", ".", "/", "nowhere", "nowhere/inside", "text/inside", "lm", "run", "translation", "/dev/null", "/dev/full"),
    *("a" * 300, "caf\udce9", "\udcff.txt", "loop", "noise", "empty", "zeros", *TEXTS, "lm.pt", "lm/test.bin"),
]
LISTS = [",", "5", "5,", "5,x", "5,2", "5,-1,1", "0,0.1,1", "nan,nan,nan"]
LISTS += ["a=b", "=", "A=", "=lm.pt", "none,0.1", "text,0.1"]
REFUSED = {"--out": "text/inside", "--port": "65536", "--save-dir": "text/inside"}
"""An argument that keeps a command from work that takes minutes."""
LONG = ("fine-tune", "run", "serve", "train")
"""Commands that train are given a folder where nothing can be written, and one that serves a port that is none."""


def hostile_values() -> st.SearchStrategy[str]:
    """Values that are hardly ever meant; what no argument of a process can hold, a zero byte, is left out."""
    text = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12)
    return st.one_of(st.sampled_from(NUMBERS), st.sampled_from(PATHS), st.sampled_from(LISTS), text)


def plausible_values(action: argparse.Action, models: Sequence[str], data: str) -> st.SearchStrategy[str]:
    """Values that a user could mean."""
    metavar, kind = str(action.metavar), getattr(action.type, "__name__", "")
    if action.choices is not None:
        return st.sampled_from(sorted(map(str, action.choices)))
    if metavar == "DATA":
        return st.just(data)
    if metavar == "CKPT":
        return st.sampled_from(models)
    if metavar == "NAME=CKPT":
        return st.sampled_from([f"A={model}" for model in models])
    if metavar in PLAUSIBLE:
        return st.sampled_from(PLAUSIBLE[metavar])
    if kind == "picture_file":
        return st.just("picture.png")
    if kind in ("output_file", "output_folder"):
        return st.just("written")
    if kind == "given_path":
        return st.sampled_from(TEXTS)
    return st.sampled_from(["1", "2", "0.5"])


@st.composite
def command_lines(draw, name: str) -> List[str]:
    """Arguments of a command: those that it needs and some others, one or two of them hostile."""
    parser = parser_of(name)
    data, models = draw(st.sampled_from(list(MODELS.items())))
    actions = [action for action in parser._actions if "--help" not in action.option_strings]
    needed = [action for action in actions if action.required or not action.option_strings]
    others = [action for action in actions if action not in needed]
    given = needed + (draw(st.lists(st.sampled_from(others), max_size=4, unique=True)) if others else [])
    wrong = draw(st.lists(st.sampled_from(given), min_size=1, max_size=2, unique=True)) if given else []
    words: List[str] = []
    for action in given:
        kept_from_work = next((REFUSED[flag] for flag in action.option_strings if flag in REFUSED), None)
        value = hostile_values() if action in wrong else plausible_values(action, models, data)
        if name in LONG and kept_from_work is not None:
            value = st.just(kept_from_work)
        words += action.option_strings[-1:]
        if action.nargs == 0:
            continue
        words += draw(st.lists(value, min_size=1, max_size=2 if action.nargs in ("+", "*") else 1))
    if name in LONG:
        flag = next(flag for action in actions for flag in action.option_strings if flag in REFUSED)
        words += [] if flag in words else [flag, REFUSED[flag]]
    return words + draw(st.sampled_from([[], [], [], ["unasked"], ["--unknown-flag"], ["--", "--lr", "1"]]))
