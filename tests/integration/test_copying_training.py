"""Trainings with copying: a name that no training text has is found in the source and written by ``--replace-unk``."""

import random

import fairseq_cli.generate
import fairseq_cli.train
import pytest
from translation_commands import SIZES, TRANSFORMER, parse, preprocess_pairs, training_flags

pytestmark = pytest.mark.slow

RAW = ["--dataset-impl", "raw"]
NAMES = [f"{first}{second}" for first in "ABCDEFGHIJ" for second in "abcdefghij"]
KNOWN = 50
"""The first names occur in the training text, the others in the test set alone."""

MODELS = {
    "recurrent": dict(model=("--arch", "lstm_encdec_doc", "--expert-warmup", 50)),
    "transformer": TRANSFORMER,
}


def write_headlines(out):
    """Articles of letters with a name in their middle; the headline is the letter t and the name."""
    generator = random.Random(1)
    for split, size in SIZES.items():
        names = generator.choices(NAMES[KNOWN:] if split == "test" else NAMES[:KNOWN], k=size)
        articles = [" ".join([*generator.choices("xyz", k=3), name, *generator.choices("xyz", k=3)]) for name in names]
        (out / f"{split}.src").write_text("".join(f"{line}\n" for line in articles))
        (out / f"{split}.tgt").write_text("".join(f"t {name}\n" for name in names))
    return out


@pytest.fixture(scope="module")
def headlines(tmp_path_factory):
    return write_headlines(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def data(headlines, tmp_path_factory):
    """With all known names in the dictionary of the articles and ten in that of the headlines."""
    return preprocess_pairs(headlines, tmp_path_factory.mktemp("raw") / "data", *RAW, "--nwordstgt", 15)


@pytest.mark.parametrize("model", MODELS)
def test_unknown_names_are_copied(model, data, headlines, tmp_path, run_here):
    flags = training_flags(data, tmp_path, *RAW, "--copying", "attention", "--max-epoch", 12, **MODELS[model])
    flags += ["--disable-validation", "--save-interval", 12]
    run_here(fairseq_cli.train, *flags)
    decoding = [data, *RAW, "--path", tmp_path / "checkpoint_last.pt", "--max-len-b", 10, "--print-alignment"]
    log = run_here(fairseq_cli.generate, *decoding, "--replace-unk")
    found = {number: sentence.hypotheses[0].words for number, sentence in parse(log).items()}
    expected = dict(enumerate(line.split() for line in (headlines / "test.tgt").read_text().splitlines()))
    assert sum(found[number] == words for number, words in expected.items()) > 0.9 * len(expected)
