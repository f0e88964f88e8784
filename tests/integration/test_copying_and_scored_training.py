"""Training of translators that are validated by decoding, that copy, and whose unknown words are replaced."""

import random
import re
from statistics import fmean

import fairseq_cli.generate
import fairseq_cli.train
import fairseq_cli.validate
import pytest
from commands import assert_same, load, validated
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU, CHRF
from translation_commands import SIZES, TRANSFORMER, parse, preprocess_pairs, translator_arguments

from fairseq_plugins.evaluation.translation import load_translator
from fairseq_plugins.metrics.corpus import CORPUS_METRICS

DECODES = ["--eval-scorer-args", '{"beam": 2, "min_len": 4, "max_len_b": 12}']
SMALL = dict(model=("--arch", "lstm_encdec_mos"), sizes=("--embed-dim", "8", "--hidden-sizes", "8 8"))


def flags_of(data, save_dir, *flags, task="scored_translation", **options):
    arguments = translator_arguments(data, save_dir, "--log-interval", 1, *flags, **{**SMALL, **options})
    arguments[arguments.index("--task") + 1] = task
    return arguments


def score_of_the_texts(name, hypotheses, references):
    if name in ("bleu", "chrf"):
        metric = {"bleu": BLEU(force=True), "chrf": CHRF()}[name]
        return metric.corpus_score(hypotheses, [references]).score
    library = RougeScorer([name], use_stemmer=True)
    pairs = zip(references, hypotheses, strict=True)
    return 100 * fmean(library.score(*pair)[name].fmeasure for pair in pairs)


def test_the_score_is_that_of_the_whole_decoded_set(pairs, pair_data, prepared, tmp_path, run_here):
    flags = [*DECODES, "--eval-scorer", "bleu", "--max-epoch", 1, "--batch-size-valid", 7]
    flags += ["--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric"]
    path = tmp_path / "checkpoint_last.pt"
    log = run_here(fairseq_cli.train, *flags_of(pair_data, tmp_path, *flags))
    decoding = [pair_data, "--path", path, "--gen-subset", "valid", "--batch-size", 60]
    found = parse(run_here(fairseq_cli.generate, *decoding, "--beam", 2, "--min-len", 4, "--max-len-b", 12))
    hypotheses = [" ".join(found[number].hypotheses[0].words) for number in sorted(found)]
    references = (pairs / "valid.tgt").read_text().splitlines()
    expected = {name: score_of_the_texts(name, hypotheses, references) for name in CORPUS_METRICS}
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


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--eval-scorer-args", "beam 4"], r"--eval-scorer-args 'beam 4': give a JSON object, such as"),
        (["--eval-scorer-args", "[]"], r"--eval-scorer-args '\[\]': give a JSON object"),
        (["--eval-bleu"], "--eval-bleu decodes as --eval-scorer bleu does: leave it out"),
        (["--eval-bleu-args", '{"beam": 4}'], "--eval-bleu-args is of --task translation: give --eval-scorer-args"),
        (["--eval-bleu-print-samples"], "--eval-bleu-print-samples is of --task translation: leave it out"),
    ],
)
def test_wrong_flags_are_told_before_training(flags, message, pair_data, tmp_path, run_here):
    with pytest.raises(ValueError, match=message):
        run_here(fairseq_cli.train, *flags_of(pair_data, tmp_path, *flags))
    assert not list(tmp_path.glob("*.pt"))


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


def test_unknown_words_are_replaced_by_the_word_with_the_highest_attention(pairs, tmp_path, run_here):
    # three words of the translations are in the dictionary
    rare_words = preprocess_pairs(pairs, tmp_path / "data", *RAW, "--nwordstgt", 7)
    flags = [*RAW, "--max-epoch", 1, "--disable-validation"]
    run_here(fairseq_cli.train, *translator_arguments(rare_words, tmp_path, *flags))
    decoding = [rare_words, *RAW, "--path", tmp_path / "checkpoint_last.pt", "--max-len-b", 10, "--print-alignment"]
    (tmp_path / "table.txt").write_text("a AAA\nb BBB\n")
    plain, copied, translated = (
        parse(run_here(fairseq_cli.generate, *decoding, *flags))
        for flags in ([], ["--replace-unk"], ["--replace-unk", tmp_path / "table.txt"])
    )
    table, sources = {"a": "AAA", "b": "BBB"}, (pairs / "test.src").read_text().splitlines()
    num_replaced = 0
    for number, sentence in plain.items():
        (hypothesis,), words = sentence.hypotheses, sources[number].split()
        places = dict(tuple(map(int, reversed(pair.split("-")))) for pair in hypothesis.alignment)
        expected = [words[places[i]] if word == "<unk>" else word for i, word in enumerate(hypothesis.words)]
        assert copied[number].hypotheses[0].words == expected
        looked_up = [table.get(word, word) if word in words else word for word in expected]
        assert translated[number].hypotheses[0].words == looked_up
        num_replaced += hypothesis.words.count("<unk>")
    assert num_replaced > 20 and not re.search("<unk>", str(copied))
    (tmp_path / "bpe.codes").write_text("#version: 0.2\nx y</w>\n")
    joining = ["--bpe", "subword_nmt", "--bpe-codes", tmp_path / "bpe.codes", "--bpe-separator", "a"]
    with pytest.raises(ValueError, match="--replace-unk copies words that the model reads: it read [1-8] and the sou"):
        run_here(fairseq_cli.generate, *decoding, "--replace-unk", *joining)
