"""Long trainings, decodings and scorings take no more memory at their end than soon after their beginning."""

import json
import os
import shutil
import statistics
from typing import Callable, List

import pytest
import torch
from forks import in_fork
from short_trainings import OLDER, train

import fairseq_plugins

pytestmark = pytest.mark.slow
GROWTH = 1.05
TRAINED = ["DOC", "encoder-decoder, DOC", "Transformer, DRILL"]
SECONDS_EACH = 0.5
"""Far more than a step takes, beside other work; so long is waited."""


def resident() -> int:
    """Memory of this process, in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def growth_of(work: Callable[[Callable[[], None]], None], folder, num_steps: int) -> float:
    """Memory in the last fifth of a run over that in the second fifth, in medians.

    Args:
        work: calls what it is given at each of its steps.
        num_steps: how many.
    """

    def measured() -> None:
        sizes: List[int] = []
        work(lambda: sizes.append(resident()))
        assert len(sizes) == num_steps
        print(f"\n{json.dumps(sizes)}")

    ended = in_fork(measured, folder=folder, seconds=60 + SECONDS_EACH * num_steps)
    assert ended.status == 0, ended.err[-3000:]
    sizes = json.loads(ended.out.splitlines()[-1])
    fifth = num_steps // 5
    return statistics.median(sizes[-fifth:]) / statistics.median(sizes[fifth : 2 * fifth])


@pytest.fixture
def num_steps(pytestconfig) -> int:
    return pytestconfig.getoption("--long-run")


@pytest.mark.parametrize("name", TRAINED)
def test_training(name, num_steps, tmp_path):
    def work(step):
        train(name, num_updates=num_steps, heard=lambda loss: step(), dtype=torch.float32)

    assert growth_of(work, tmp_path, num_steps) < GROWTH


def test_scored_lines(num_steps, tmp_path):
    model = fairseq_plugins.load(OLDER / "lstm_lm_doc.pt", data=OLDER / "data/lm", text="tokenised")

    def work(step):
        for _ in range(num_steps):
            model.score(["the big cat wants a mouse today"])
            step()

    assert growth_of(work, tmp_path, num_steps) < GROWTH


def test_decoded_sentences(num_steps, tmp_path):
    data = shutil.copytree(OLDER / "data/translation", tmp_path / "data")
    (data / "bpe.codes").write_text("#version: 0.2\nx a</w>\n")
    model = fairseq_plugins.load(OLDER / "lstm_encdec_doc.pt", data=data)

    def work(step):
        for _ in range(num_steps):
            model.translate(["a b c d"])
            step()

    assert growth_of(work, tmp_path, num_steps) < GROWTH
