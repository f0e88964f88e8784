"""The commands of a translation model's life: train, translate, combine, copy."""

import math
import random
import re
import shutil

import fairseq_cli.generate
import fairseq_cli.train
import fairseq_cli.validate
import pytest
import torch
from binarised_data import copy_data
from commands import load, preprocess, validated
from fairseq.checkpoint_utils import load_model_ensemble
from fairseq.data import Dictionary
from translation_commands import (
    EPOCHS,
    FAIRSEQ_FLAGS,
    SIZES,
    TRANSFORMER,
    generate,
    parse,
    preprocess_pairs,
    translate,
    translator_arguments,
)

from fairseq_plugins.evaluation.translation import load_translator
from fairseq_plugins.metrics.corpus import CORPUS_METRICS


@pytest.fixture(scope="module")
def translations(pair_data, translator):
    return generate(pair_data, translator / "checkpoint_best.pt", "--beam", 5)


# training


def test_validation_improves_until_the_language_is_learnt(translator):
    curve = validated((translator / "train.log").read_text(), "ppl")
    assert len(curve) == EPOCHS and curve[0] > 5 and curve[-1] < 1.6


def test_fairseqs_criterion_trains_and_measures_bleu(plain_translator):
    log = (plain_translator / "train.log").read_text()
    losses, bleus = validated(log, "nll_loss"), validated(log, "bleu")
    assert losses[-1] < losses[0] / 2 and bleus[-1] > 50
    assert float(re.findall(r"\| best_bleu ([\d.]+)", log)[-1]) == max(bleus)


def test_the_score_of_validation_is_that_of_the_whole_decoded_set(pairs, pair_data, prepared, tmp_path, run_here):
    decodes = ["--eval-scorer-args", '{"beam": 2, "min_len": 4, "max_len_b": 12}', "--task", "scored_translation"]
    model = dict(model=("--arch", "lstm_encdec_mos"), sizes=("--embed-dim", "8", "--hidden-sizes", "8 8"))
    flags = [*decodes, "--max-epoch", 1, "--batch-size-valid", 7]
    log = run_here(fairseq_cli.train, *translator_arguments(pair_data, tmp_path, *flags, **model))
    given = [pair_data, "--path", tmp_path / "checkpoint_last.pt"]
    decoding = ["--gen-subset", "valid", "--beam", 2, "--min-len", 4, "--max-len-b", 12]
    found = parse(run_here(fairseq_cli.generate, *given, *decoding))
    hypotheses = [" ".join(found[number].hypotheses[0].words) for number in sorted(found)]
    references = (pairs / "valid.tgt").read_text().splitlines()
    for name in ("bleu", "chrf", "rougeL"):
        metric = CORPUS_METRICS[name]()
        score = metric.score(sum(map(metric.statistics, hypotheses, references)))
        validation = run_here(fairseq_cli.validate, *given, *decodes, "--eval-scorer", name, "--batch-size", 9)
        assert score > 0 and float(re.findall(rf"\| {name} ([\d.]+)", validation)[-1]) == pytest.approx(score, rel=1e-4)
        if name == "bleu":
            assert validated(log, name) == [pytest.approx(score, rel=1e-4)]
    assert len(load_translator([tmp_path / "checkpoint_last.pt"], prepared).translate(["a b"])) == 1


@pytest.mark.parametrize(
    "dtype, flags, decoding, tolerance",
    [
        # fairseq's flat copy of the weights needs a GPU
        (torch.float16, ["--fp16", "--fp16-no-flatten-grads"], ["--fp16"], 0.01),
        # fairseq decodes in 32 bits
        (torch.bfloat16, ["--bf16"], [], 2e-4),
        # on a CPU it lowers no precision
        (torch.float32, ["--amp"], [], 2e-4),
    ],
)
def test_a_transformer_learns_and_translates_in_each_precision_of_fairseq(
    dtype, flags, decoding, tolerance, pair_data, tmp_path, run_here
):
    training = translator_arguments(pair_data, tmp_path, "--max-epoch", 2, *flags, **TRANSFORMER)
    log = run_here(fairseq_cli.train, *training)
    first, last = validated(log, "ppl")
    assert last < 0.9 * first
    path = tmp_path / "checkpoint_last.pt"
    assert all(torch.equal(weight, weight.to(dtype).float()) for weight in load(path)["model"].values())
    decoding = [*FAIRSEQ_FLAGS, "--path", path, "--beam", 2, "--max-len-b", 10, *decoding]
    translations = parse(run_here(fairseq_cli.generate, pair_data, *decoding))
    assert sorted(translations) == list(range(SIZES["test"]))
    assert_scores(pair_data, path, translations, tolerance=tolerance)


def test_a_long_sentence_of_valid_is_refused_before_training(pair_data, tmp_path, run_here):
    flags = ["--max-source-positions", 4, "--max-target-positions", 4, "--max-epoch", 1]
    arguments = translator_arguments(pair_data, tmp_path, *flags, model=["--arch", "lstm_encdec"])
    with pytest.raises(ValueError, match=r"^valid: \d+ sentences are too long, such as number \d+ with \d+ and \d+ t"):
        run_here(fairseq_cli.train, *arguments)
    assert not any(tmp_path.glob("*.pt"))
    log = run_here(fairseq_cli.train, *arguments, "--skip-invalid-size-inputs-valid-test")
    assert "valid on 'valid' subset" in log


# translating


def test_beam_search_translates(translations):
    assert sorted(translations) == list(range(SIZES["test"]))
    right = [one.hypotheses[0].words == translate(one.source).split() for one in translations.values()]
    assert sum(right) > 0.7 * len(right)


def test_shards_are_the_whole_and_are_scored(
    pair_data, pairs, translator, translations, run_here, printed_by, tmp_path
):
    files = [tmp_path / f"shard {shard}.txt" for shard in range(3)]
    for shard, file in enumerate(files):
        flags = ["--num-shards", 3, "--shard-id", shard, "--beam", 5, "--batch-size", 8]
        file.write_text(run_here(fairseq_cli.generate, pair_data, "--path", translator / "checkpoint_best.pt", *flags))
    parts = [parse(file.read_text()) for file in files]
    assert sorted(len(part) for part in parts) == [8, 16, 16]
    together = {number: sentence.hypotheses[0].words for part in parts for number, sentence in part.items()}
    assert together == {number: sentence.hypotheses[0].words for number, sentence in translations.items()}
    scored = ["--input", *files, "--reference", pairs / "test.tgt", "--target-lang", "en"]
    assert "BLEU, detokenised" in printed_by("evaluate bleu", *scored)


# scores of models together


@torch.no_grad()
def positional_scores(data, path, sentence, *, lm=None, lm_weight=0.0):
    """Of the first hypothesis: the model's log-probabilities plus those of the language model, in bits."""
    dictionaries = [Dictionary.load(str(data / f"dict.{language}.txt")) for language in ("src", "tgt")]
    source, target = (
        dictionary.encode_line(line, add_if_not_exist=False).long().unsqueeze(0)
        for dictionary, line in zip(dictionaries, (sentence.source, " ".join(sentence.hypotheses[0].words)))
    )
    previous = target.roll(1, dims=1)
    (model,), _ = load_model_ensemble([str(path)])
    log_probs = model.eval()(source, torch.tensor([source.size(1)]), previous)[0]
    if lm is not None:
        log_probs = log_probs + lm_weight * lm.eval()(previous)[0]
    return (log_probs.gather(-1, target.unsqueeze(-1))[0, :, 0] / math.log(2)).tolist()


def assert_scores(data, path, translations, *, tolerance=2e-4, **language_model):
    for sentence in list(translations.values())[:5]:
        expected = positional_scores(data, path, sentence, **language_model)
        assert sentence.hypotheses[0].positional_scores == pytest.approx(expected, abs=tolerance)


def test_language_models_vote_with_their_weight(pairs, pair_data, translator, run_here, tmp_path):
    """The target side's, and a gate on it."""
    for split in SIZES:
        shutil.copy(pairs / f"{split}.tgt", tmp_path / f"{split}.txt")
    lm_data = preprocess(tmp_path, tmp_path / "lm data", "--srcdict", pair_data / "dict.tgt.txt")
    training = ["--task", "stateful_lm", "--criterion", "regularized_cross_entropy", "--max-epoch", 1]
    training += ["--tokens-per-sample", 20, "--batch-size", 4, "--optimizer", "adam", "--lr", 0.01]
    base, gated = (tmp_path / name / "checkpoint_best.pt" for name in ("base", "gated"))
    network = ["--arch", "lstm_lm_doc", "--embed-dim", 12, "--hidden-sizes", "16 12"]
    run_here(fairseq_cli.train, lm_data, *training, *network, "--save-dir", base.parent)
    network = ["--arch", "gated_lm", "--base-model", base, "--output-gate", "iog-lstm", "--gate-dim", 8]
    run_here(fairseq_cli.train, lm_data, *training, *network, "--save-dir", gated.parent)
    both = copy_data(pair_data, tmp_path / "bin")
    shutil.copy(pair_data / "dict.tgt.txt", both / "dict.txt")  # where fairseq looks for the language model's
    path = translator / "checkpoint_best.pt"
    for lm_path in (base, gated):
        flags = ["--path", path, "--beam", 5, "--lm-path", lm_path, "--lm-weight", 0.4]
        found = parse(run_here(fairseq_cli.generate, both, *flags))
        (lm,), _ = load_model_ensemble([str(lm_path)], arg_overrides={"data": str(both)})
        assert_scores(pair_data, path, found, lm=lm, lm_weight=0.4)
        base.unlink(missing_ok=True)


# copying: a name that no training text has is found in the source and written by ``--replace-unk``

RAW = ["--dataset-impl", "raw"]
NAMES = [f"{first}{second}" for first in "ABCDEFGHIJ" for second in "abcdefghij"]
KNOWN = 50
"""The first names occur in the training text, the others in the test set alone."""


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


@pytest.mark.parametrize("options", [{}, TRANSFORMER], ids=["DOC", "Transformer"])
def test_unknown_names_are_copied(options, headlines, tmp_path, run_here):
    flags = ["--copying", "attention", "--max-epoch", 7, "--disable-validation", "--save-interval", 7]
    run_here(fairseq_cli.train, *translator_arguments(headlines / "data", tmp_path, *RAW, *flags, **options))
    decoding = [headlines / "data", *RAW, "--path", tmp_path / "checkpoint_last.pt", "--max-len-b", 10]
    log = run_here(fairseq_cli.generate, *decoding, "--print-alignment", "--replace-unk")
    found = {number: sentence.hypotheses[0].words for number, sentence in parse(log).items()}
    expected = dict(enumerate(line.split() for line in (headlines / "test.tgt").read_text().splitlines()))
    assert sum(found[number] == words for number, words in expected.items()) > 0.9 * len(expected)
