"""Training of translators that are validated by decoding, and of those that copy."""

import random
import re

import fairseq_cli.generate
import fairseq_cli.train
import fairseq_cli.validate
import pytest
from commands import assert_same, load, validated
from translation_commands import SIZES, TRANSFORMER, parse, preprocess_pairs, translator_arguments

from fairseq_plugins.evaluation.translation import load_translator
from fairseq_plugins.metrics.corpus import CORPUS_METRICS

DECODES = ["--eval-scorer-args", '{"beam": 2, "min_len": 4, "max_len_b": 12}']
SMALL = dict(model=("--arch", "lstm_encdec_mos"), sizes=("--embed-dim", "8", "--hidden-sizes", "8 8"))


def flags_of(data, save_dir, *flags):
    return translator_arguments(data, save_dir, "--task", "scored_translation", "--log-interval", 1, *flags, **SMALL)


def test_the_score_is_that_of_the_whole_decoded_set(pairs, pair_data, prepared, tmp_path, run_here):
    flags = [*DECODES, "--eval-scorer", "bleu", "--max-epoch", 1, "--batch-size-valid", 7]
    flags += ["--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric"]
    path = tmp_path / "checkpoint_last.pt"
    log = run_here(fairseq_cli.train, *flags_of(pair_data, tmp_path, *flags))
    decoding = [pair_data, "--path", path, "--gen-subset", "valid", "--batch-size", 60]
    found = parse(run_here(fairseq_cli.generate, *decoding, "--beam", 2, "--min-len", 4, "--max-len-b", 12))
    hypotheses = [" ".join(found[number].hypotheses[0].words) for number in sorted(found)]
    references = (pairs / "valid.tgt").read_text().splitlines()
    expected = {}
    for name in ("bleu", "chrf", "rougeL"):
        metric = CORPUS_METRICS[name]()
        expected[name] = metric.score(sum(map(metric.statistics, hypotheses, references)))
    assert validated(log, "bleu") == [pytest.approx(expected["bleu"], rel=1e-4)]
    assert load(path)["extra_state"]["val_loss"] == pytest.approx(expected["bleu"], rel=1e-4)
    for name, score in expected.items():
        validation = [pair_data, "--path", path, "--task", "scored_translation", *DECODES, "--eval-scorer", name]
        log = run_here(fairseq_cli.validate, *validation, "--batch-size", 9)
        assert score > 0 and float(re.findall(rf"\| {name} ([\d.]+)", log)[-1]) == pytest.approx(score, rel=1e-4)
    assert len(load_translator([path], prepared).translate(["a b"])) == 1


def test_the_best_checkpoint_is_chosen_by_the_metric_and_a_resumed_training_keeps_it(pair_data, tmp_path, run_here):
    flags = [*DECODES, "--eval-scorer", "chrf", "--no-epoch-checkpoints"]
    flags += ["--best-checkpoint-metric", "chrf", "--maximize-best-checkpoint-metric"]
    log = run_here(fairseq_cli.train, *flags_of(pair_data, tmp_path / "whole", *flags, "--max-epoch", 2))
    whole = validated(log, "chrf")
    for end in (1, 2):
        log = run_here(fairseq_cli.train, *flags_of(pair_data, tmp_path / "parts", *flags, "--max-epoch", end))
    assert len(whole) == 2 and validated(log, "chrf") == whole[1:]
    best, last = (load(tmp_path / "parts" / f"checkpoint_{name}.pt") for name in ("best", "last"))
    assert best["extra_state"]["best"] == pytest.approx(max(whole), rel=1e-5)
    assert_same(last["model"], load(tmp_path / "whole/checkpoint_last.pt")["model"], "model")


# copying: a name that no training text has is found in the source and written by ``--replace-unk``


RAW = ["--dataset-impl", "raw"]
NAMES = [f"{first}{second}" for first in "ABCDEFGHIJ" for second in "abcdefghij"]
KNOWN = 50
"""The first names occur in the training text, the others in the test set alone."""

MODELS = {
    "recurrent": dict(model=("--arch", "lstm_encdec_doc", "--expert-warmup", 50)),
    "transformer": TRANSFORMER,
}


@pytest.fixture(scope="module")
def headlines(tmp_path_factory):
    """Articles of letters with a name in their middle; the headline is the letter t and the name.

    All known names are in the dictionary of the articles and ten in that of the headlines.
    """
    out, generator = tmp_path_factory.mktemp("headlines"), random.Random(1)
    for split, size in SIZES.items():
        names = generator.choices(NAMES[KNOWN:] if split == "test" else NAMES[:KNOWN], k=size)
        articles = [" ".join([*generator.choices("xyz", k=3), name, *generator.choices("xyz", k=3)]) for name in names]
        (out / f"{split}.src").write_text("".join(f"{line}\n" for line in articles))
        (out / f"{split}.tgt").write_text("".join(f"t {name}\n" for name in names))
    preprocess_pairs(out, out / "data", *RAW, "--nwordstgt", 15)
    return out


@pytest.mark.parametrize("model", MODELS)
def test_unknown_names_are_copied(model, headlines, tmp_path, run_here):
    flags = ["--copying", "attention", "--max-epoch", 7, "--disable-validation", "--save-interval", 7]
    run_here(fairseq_cli.train, *translator_arguments(headlines / "data", tmp_path, *RAW, *flags, **MODELS[model]))
    decoding = [headlines / "data", *RAW, "--path", tmp_path / "checkpoint_last.pt", "--max-len-b", 10]
    log = run_here(fairseq_cli.generate, *decoding, "--print-alignment", "--replace-unk")
    found = {number: sentence.hypotheses[0].words for number, sentence in parse(log).items()}
    expected = dict(enumerate(line.split() for line in (headlines / "test.tgt").read_text().splitlines()))
    assert sum(found[number] == words for number, words in expected.items()) > 0.9 * len(expected)


# ``fairseq-generate --replace-unk`` without copying: unknown words are taken from where the attention is
