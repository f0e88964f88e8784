"""Validation by a metric of real decoding, by fairseq's training."""

import re
from statistics import fmean

import fairseq_cli.generate
import fairseq_cli.train
import fairseq_cli.validate
import pytest
from commands import assert_same, load
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU, CHRF
from test_two_processes import run_two
from translation_commands import parse, training_flags

from fairseq_plugins.evaluation.translation import load_translator
from fairseq_plugins.metrics.corpus import CORPUS_METRICS

DECODES = ["--eval-scorer-args", '{"beam": 2, "min_len": 4, "max_len_b": 12}']
SMALL = dict(model=("--arch", "lstm_encdec_mos"), sizes=("--embed-dim", "8", "--hidden-sizes", "8 8"))


def flags_of(data, save_dir, *flags, task="scored_translation", **options):
    arguments = training_flags(data, save_dir, "--log-interval", 1, *flags, **{**SMALL, **options})
    arguments[arguments.index("--task") + 1] = task
    return arguments


def scores_of(log, name):
    return [float(score) for score in re.findall(rf"valid on 'valid' subset .*?\| {name} ([\d.e-]+)", log)]


def score_of_the_texts(name, hypotheses, references):
    if name in ("bleu", "chrf"):
        metric = {"bleu": BLEU(force=True), "chrf": CHRF()}[name]
        return metric.corpus_score(hypotheses, [references]).score
    library = RougeScorer([name], use_stemmer=True)
    pairs = zip(references, hypotheses, strict=True)
    return 100 * fmean(library.score(*pair)[name].fmeasure for pair in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("name", CORPUS_METRICS)
def test_the_score_is_that_of_the_whole_decoded_set(name, pairs, pair_data, prepared, tmp_path, run_here):
    flags = [*DECODES, "--eval-scorer", name, "--max-epoch", 1, "--batch-size-valid", 7]
    flags += ["--best-checkpoint-metric", name, "--maximize-best-checkpoint-metric"]
    path = tmp_path / "checkpoint_last.pt"
    log = run_here(fairseq_cli.train, *flags_of(pair_data, tmp_path, *flags))
    (score,) = scores_of(log, name)
    decoding = [pair_data, "--path", path, "--gen-subset", "valid", "--batch-size", 60]
    found = parse(run_here(fairseq_cli.generate, *decoding, "--beam", 2, "--min-len", 4, "--max-len-b", 12))
    hypotheses = [" ".join(found[number].hypotheses[0].words) for number in sorted(found)]
    references = (pairs / "valid.tgt").read_text().splitlines()
    assert score == pytest.approx(score_of_the_texts(name, hypotheses, references), rel=1e-4) and score > 0
    assert load(path)["extra_state"]["val_loss"] == pytest.approx(score, rel=1e-4)
    assert len(load_translator([path], prepared).translate(["a b"])) == 1


@pytest.mark.slow
def test_a_training_is_the_same_as_without_even_where_decoding_samples(pair_data, tmp_path, run_here):
    flags = ["--max-update", 12, "--validate-interval-updates", 5]
    samples = ["--eval-scorer-args", '{"beam": 1, "sampling": true, "max_len_b": 5}']
    run_here(fairseq_cli.train, *flags_of(pair_data, tmp_path / "plain", *flags, task="translation"))
    run_here(fairseq_cli.train, *flags_of(pair_data, tmp_path / "scored", *flags, *samples))
    plain, scored = (load(tmp_path / name / "checkpoint_last.pt") for name in ("plain", "scored"))
    for part in ("model", "last_optimizer_state"):
        assert_same(scored[part], plain[part], part)


@pytest.mark.slow
def test_the_best_checkpoint_is_chosen_by_the_metric_and_a_resumed_training_keeps_it(pair_data, tmp_path, run_here):
    flags = [*DECODES, "--eval-scorer", "chrf", "--no-epoch-checkpoints"]
    flags += ["--best-checkpoint-metric", "chrf", "--maximize-best-checkpoint-metric"]
    whole = scores_of(
        run_here(fairseq_cli.train, *flags_of(pair_data, tmp_path / "whole", *flags, "--max-epoch", 4)), "chrf"
    )
    assert len(whole) == 4
    for end in (2, 4):
        log = run_here(fairseq_cli.train, *flags_of(pair_data, tmp_path / "parts", *flags, "--max-epoch", end))
    assert scores_of(log, "chrf") == whole[2:]
    best, last = (load(tmp_path / "parts" / f"checkpoint_{name}.pt") for name in ("best", "last"))
    assert best["extra_state"]["best"] == pytest.approx(max(whole), rel=1e-5)
    assert_same(last["model"], load(tmp_path / "whole/checkpoint_last.pt")["model"], "model")
    validation = [pair_data, "--path", tmp_path / "parts/checkpoint_best.pt", "--task", "scored_translation"]
    log = run_here(fairseq_cli.validate, *validation, *DECODES, "--eval-scorer", "chrf", "--batch-size", 9)
    assert float(re.findall(r"\| chrf ([\d.]+)", log)[-1]) == pytest.approx(max(whole), rel=1e-4)


@pytest.mark.slow
def test_two_processes_score_like_one(pair_data, tmp_path, run_here):
    flags = [*DECODES, "--dropout", 0, "--latent-dropout", 0, "--optimizer", "sgd", "--lr", 0.5, "--max-epoch", 1]
    flags += ["--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric", "--batch-size-valid", 7]
    flags += ["--batch-size", 8]
    run_here(fairseq_cli.train, *flags_of(pair_data, tmp_path / "one", *flags, "--update-freq", 2))
    run_two(flags_of(pair_data, tmp_path / "two", *flags), tmp_path / "two")
    one, two = (load(tmp_path / name / "checkpoint_last.pt")["extra_state"]["val_loss"] for name in ("one", "two"))
    assert one > 0 and two == pytest.approx(one, rel=1e-3)


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--eval-scorer-args", "beam 4"], r"--eval-scorer-args 'beam 4': give a JSON object, such as"),
        (
            ["--eval-scorer-args", '{"beem": 4}'],
            "--eval-scorer-args: generation while training has no argument beem; it has",
        ),
        (
            ["--eval-scorer-args", '{"sampling_topk": 3}'],
            "--eval-scorer-args: --sampling-topk 3 has no effect without --sampling",
        ),
        (
            ["--eval-scorer-args", '{"sampling": true, "sampling_topk": 900}'],
            "--eval-scorer-args: --sampling-topk 900: the target's dictionary has [0-9]+ words, give fewer",
        ),
        (["--eval-scorer-detok-args", "[]"], r"--eval-scorer-detok-args '\[\]': give a JSON object"),
        (["--eval-scorer-args", '{"max_len_b": -5}'], "--eval-scorer-args: --max-len-b -5: give at least 0"),
        (["--eval-scorer-args", '{"min_len": 300}'], "--eval-scorer-args: --max-len-b 200 is below --min-len 300"),
        (
            ["--eval-scorer-args", '{"beam": 4, "diverse_beam_groups": 3}'],
            "--diverse-beam-groups 3 must divide --beam 4",
        ),
        (["--eval-bleu"], "--eval-bleu decodes as --eval-scorer bleu does: leave it out"),
        (["--eval-bleu-args", '{"beam": 4}'], "--eval-bleu-args is of --task translation: give --eval-scorer-args"),
        (["--eval-bleu-print-samples"], "--eval-bleu-print-samples is of --task translation: leave it out"),
    ],
)
def test_wrong_flags_are_told_before_training(flags, message, pair_data, tmp_path, run_here):
    with pytest.raises(ValueError, match=message):
        run_here(fairseq_cli.train, *flags_of(pair_data, tmp_path, *flags))
    assert not list(tmp_path.glob("*.pt"))
