"""Long trainings, decodings and scorings take as much memory and time at their end as soon after their beginning."""

import json
import os
import random
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterator, List, Sequence

import fairseq_cli.train
import pytest
import torch
from binarised_data import copy_data
from fairseq.data import Dictionary
from fairseq.trainer import Trainer
from forks import in_fork
from paths import SMALL_MODELS
from short_trainings import FAMILIES

import fairseq_plugins
from fairseq_plugins.commands.method_flags import read_methods
from fairseq_plugins.evaluation.evaluator import Evaluator
from fairseq_plugins.evaluation.methods import EvaluatedText, interpolate

pytestmark = pytest.mark.slow
MEMORY_GROWTH, TIME_GROWTH = 1.05, 2
PLUGINS = str(Path(fairseq_plugins.__file__).parent)
LINES_PER_UPDATE = 5
"""Lines and sentences are read so many times as there are updates."""
SECONDS_EACH = 0.5
"""Far more than a step takes, beside other work; so long is waited."""


def resident() -> int:
    """Memory of this process, in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Growth:
    """Memory and time of the last fifth of a run, relative to the second fifth.

    Attributes:
        memory: in medians of steps.
        seconds: of the processor for a step, in those that took least, which other work on the machine delays least.
    """

    memory: float
    seconds: float


def check_growth(work: Callable[[Callable[[], None]], None], folder, num_steps: int) -> None:
    """Run a process of its own; it takes as much in the end as soon after the beginning.

    Args:
        work: calls what it is given at each of its steps.
        num_steps: how many.
    """

    def measured() -> None:
        sizes: List[int] = []
        times = [time.process_time()]

        def step() -> None:
            sizes.append(resident())
            times.append(time.process_time())

        work(step)
        assert len(sizes) == num_steps
        seconds = [after - before for before, after in zip(times, times[1:])]
        early, late = slice(num_steps // 5, 2 * num_steps // 5), slice(-(num_steps // 5), None)
        memory = statistics.median(sizes[late]) / statistics.median(sizes[early])
        print(f"\n{json.dumps([memory, min(seconds[late]) / min(seconds[early])])}")

    ended = in_fork(measured, folder=folder, seconds=60 + SECONDS_EACH * num_steps)
    assert ended.status == 0, ended.err[-3000:]
    growth = Growth(*json.loads(ended.out.splitlines()[-1]))
    print(f"{num_steps:,} steps: memory x {growth.memory:.3f}, time of a step x {growth.seconds:.2f}")
    assert growth.memory < MEMORY_GROWTH and growth.seconds < TIME_GROWTH


@pytest.fixture
def num_steps(pytestconfig) -> int:
    return pytestconfig.getoption("--long-run")


@pytest.mark.parametrize("name", ["DOC", "encoder-decoder, DOC", "Transformer, DRILL"])
def test_training_that_validates_and_saves_every_epoch(name, num_steps, tmp_path):
    """By fairseq-train, in epochs of a few updates."""
    arguments = [*FAMILIES[name], "--max-update", num_steps, "--save-dir", tmp_path, "--no-epoch-checkpoints", "--cpu"]
    arguments += ["--user-dir", PLUGINS, "--num-workers", 0, "--log-format", "none"]

    def work(step):
        train_step = Trainer.train_step

        def heard(self, *args, **kwargs):
            result = train_step(self, *args, **kwargs)
            step()
            return result

        Trainer.train_step = heard
        sys.argv = ["fairseq-train", *map(str, arguments)]
        fairseq_cli.train.cli_main()

    check_growth(work, tmp_path, num_steps)


def random_lines(words: Sequence[str], num_lines: int) -> Iterator[str]:
    """Sentences of 1 to 8 words; a computation whose memory depends on their lengths has seen all of them soon."""
    generator = random.Random(1)
    for _ in range(num_lines):
        yield " ".join(generator.choices(words, k=generator.randint(1, 8)))


def test_scored_lines(num_steps, tmp_path):
    model = fairseq_plugins.load(SMALL_MODELS / "lstm_lm_doc.pt", data=SMALL_MODELS / "data/lm", text="tokenised")
    words = words_of(model.models[0].decoder.dictionary)

    def work(step):
        for line in random_lines(words, LINES_PER_UPDATE * num_steps):
            model.score([line])
            step()

    check_growth(work, tmp_path, LINES_PER_UPDATE * num_steps)


def test_decoded_sentences(num_steps, tmp_path):
    data = copy_data(SMALL_MODELS / "data/translation", tmp_path / "data", subwords=True)
    model = fairseq_plugins.load(SMALL_MODELS / "lstm_encdec_doc.pt", data=data)
    words = words_of(Dictionary.load(str(data / "dict.src.txt")))

    def work(step):
        for line in random_lines(words, LINES_PER_UPDATE * num_steps):
            model.translate([line], beam=1)
            step()

    check_growth(work, tmp_path, LINES_PER_UPDATE * num_steps)


def words_of(dictionary: Dictionary) -> List[str]:
    return dictionary.symbols[dictionary.nspecial :]


def test_segments_of_dynamic_evaluation_with_a_cache(num_steps, tmp_path):
    model = fairseq_plugins.load(SMALL_MODELS / "lstm_lm_doc.pt", data=SMALL_MODELS / "data/lm", text="tokenised")
    dictionary = model.models[0].decoder.dictionary
    flags = {"dynamic": "sgd", "dynamic-rate": "0.01", "dynamic-segment": "5", "cache": "50,0.1,1"}

    def work(step):
        tokens = torch.randint(dictionary.nspecial, len(dictionary), (5 * num_steps + 1,))
        text, (passes, mixed) = EvaluatedText(tokens, dictionary=dictionary, num_rows=1), read_methods(flags)
        evaluator = Evaluator(model.models, checkpoints=[], data=tmp_path, window=5)
        for window, scores in evaluator.score(text, passes, list(mixed)):
            interpolate(-window.nll, scores, list(mixed.values()))
            step()

    check_growth(work, tmp_path, num_steps)
