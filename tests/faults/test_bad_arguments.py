"""Whatever a command is given, it ends with a result or with one line, and touches no file of the user's."""

import argparse
import re
from typing import List, Sequence

import pytest
from command_table import contents
from forks import in_fork, program
from hypothesis import strategies as st
from paths import PLUGINS
from trials import check_end, check_figures, check_files, faults, is_of_fairseq
from typed_commands import parser_of, type_command

from fairseq_plugins.commands.app import COMMANDS
from fairseq_plugins.commands.flags import flags_parser
from fairseq_plugins.models.presets import ARCHITECTURES, GATED_LANGUAGE_MODELS, LANGUAGE_MODELS

pytestmark = pytest.mark.slow
STDIN = [b"", b"the cat eats\n", b"\xff\xfe\n\0", "\u2028caf\u00e9\r\nx\r".encode()]


# command lines, drawn for any command by what its parser declares

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


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_ends_with_a_result_or_a_line(name, workplace, pytestconfig):

    @faults(pytestconfig, name, share=1 / len(COMMANDS))
    def check(words, stdin):
        with workplace() as folder:
            before = contents(folder)
            ended = in_fork(lambda: type_command(name, words), folder=folder, stdin=stdin)
            check_end(ended, told=f"fairseq-plugins {name}: error: ")
            check_figures(ended)
            check_files(before, folder)

    check(command_lines(name), st.sampled_from(STDIN))


# flags of fairseq-train: it trains, or ends with one line before it saves anything


FULL_SIZE = re.compile(r"_(medium|large|big|ptb|wt2|wt103|wsj|iwslt|wmt14|gigaword|text8_words|text8_chars)(_|$)")
SMALL = [name for name in ARCHITECTURES if not FULL_SIZE.search(name) and name not in GATED_LANGUAGE_MODELS]
TRAINING = [
    *("--user-dir", str(PLUGINS), "--cpu", "--num-workers", "0", "--log-format", "simple"),
    *("--save-dir", "trained", "--max-update", "1", "--batch-size", "2", "--lr", "0.1"),
]
STREAMS = ["lm", "--task", "stateful_lm", "--tokens-per-sample", "10", "--batch-size-valid", "2"]
PAIRS = ["translation", "--task", "scored_translation"]
PAIRS += ["--max-source-positions", "100", "--max-target-positions", "100"]


@st.composite
def training_flags(draw, arch):
    """Flags of fairseq-train, one or two of the package's with hostile values."""
    is_lm = arch in LANGUAGE_MODELS
    criterion = draw(st.sampled_from(["regularized_cross_entropy"] * 3 + ["noise_contrastive"]))
    optimizer = draw(st.sampled_from(["nt_asgd", "l2_adam", "damped_adagrad", "sgd"]))
    words = [*(STREAMS if is_lm else PAIRS), "--arch", arch, "--criterion", criterion, "--optimizer", optimizer]
    actions = [action for action in flags_parser(arch)._actions if action.option_strings]
    for action in draw(st.lists(st.sampled_from(actions), min_size=1, max_size=2, unique=True)):
        words.append(action.option_strings[-1])
        choices = [] if action.choices is None else sorted(map(str, action.choices))
        if action.nargs != 0:
            words.append(draw(st.one_of(hostile_values(), st.sampled_from(choices)) if choices else hostile_values()))
    return words


@pytest.mark.parametrize("arch", SMALL)
def test_a_training_ends_well_or_with_a_line(arch, workplace, pytestconfig):
    @faults(pytestconfig, arch, share=1 / len(SMALL))
    def check(words):
        with workplace() as folder:
            ended = in_fork(program(["fairseq_cli.train", *TRAINING, *words]), folder=folder)
            assert not ended.hung and (is_of_fairseq(ended) or "Traceback" not in ended.err), ended.err
            assert ended.status in (0, 1, 2), ended
            saved = list((folder / "trained").glob("checkpoint*.pt"))
            if ended.status == 0:
                assert saved and not re.search(r"\bloss (nan|inf)", ended.out + ended.err), ended.err
            else:
                assert not saved, ended.err
                assert is_of_fairseq(ended) or re.match(r"error: |\S+: error: ", ended.err.split("\n")[-2]), ended.err

    check(training_flags(arch))
