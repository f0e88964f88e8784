"""Whatever a command is given, it ends with a result or with one line, and touches no file of the user's."""

import re

import pytest
from command_lines import command_lines, hostile_values
from command_table import ROOT, contents
from forks import in_fork, program
from hypothesis import strategies as st
from trials import check_end, check_figures, check_files, faults, is_of_fairseq
from typed_commands import type_command

from fairseq_plugins.commands.app import COMMANDS
from fairseq_plugins.commands.flags import flags_parser
from fairseq_plugins.models.presets import ARCHITECTURES, GATED_LANGUAGE_MODELS, LANGUAGE_MODELS

pytestmark = pytest.mark.slow
STDIN = [b"", b"the cat eats\n", b"\xff\xfe\n\0", "\u2028caf\u00e9\r\nx\r".encode()]


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
    *("--user-dir", str(ROOT / "fairseq_plugins"), "--cpu", "--num-workers", "0", "--log-format", "simple"),
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
def test_it_trains_or_ends_with_a_line(arch, workplace, pytestconfig):
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
