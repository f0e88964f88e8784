"""Validation by real decoding, fairseq's ``--eval-bleu`` and ``--eval-scorer``."""

from argparse import Namespace
from contextlib import nullcontext

import pytest
import torch
from builders import make_dictionary, randomise
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.data import Dictionary, LanguagePairDataset
from fairseq.logging import metrics
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.tasks.translation import TranslationConfig, TranslationTask

import fairseq_plugins  # noqa: F401
from fairseq_plugins.tasks.scored_translation import ScoredTranslationConfig, ScoredTranslationTask

# untrained models would repeat a word, so words are drawn
GENERATION = '{"beam": 2, "sampling": true, "min_len": 5, "max_len_b": 8}'
HOST = dict(eval_bleu=True, eval_bleu_args=GENERATION, eval_bleu_detok="space")
TRANSFORMER_SIZES = dict(embed_dim=8, ffn_embed_dim=8, layers=1, attention_heads=2)
VOCABULARY = make_dictionary(12)  # small, so that drawn words are often the reference's


def build(task, arch):
    """A model with layers a few units wide."""
    sizes = dict(embed_dim=8, hidden_sizes="8 8")
    if arch.startswith("transformer"):
        sizes = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in TRANSFORMER_SIZES.items()}
    args = Namespace(arch=arch, **sizes)
    ARCH_CONFIG_REGISTRY[arch](args)
    return randomise(task.build_model(args), seed=1).eval()


def batches(num_batches):
    """Batches of pairs of one to eight words; every third word of a translation is unknown."""
    generator = torch.Generator().manual_seed(2)
    lengths = torch.randint(1, 9, (num_batches, 2, 5), generator=generator).tolist()
    sentences = [
        [[torch.randint(3, 12, (n,), generator=generator) for n in side] for side in batch] for batch in lengths
    ]
    ended = [[[torch.cat([one, torch.tensor([2])]) for one in side] for side in batch] for batch in sentences]
    for source, target in ended:
        sizes = ([len(one) for one in side] for side in (source, target))
        pairs = LanguagePairDataset(source, next(sizes), VOCABULARY, target, next(sizes), VOCABULARY)
        yield pairs.collater([pairs[i] for i in range(5)])


def validated(task, model, samples):
    """What is logged of a validation."""
    criterion = CrossEntropyCriterion(task, sentence_avg=False)
    with metrics.aggregate(new_root=True) as logged, torch.no_grad():
        for number, sample in enumerate(samples):
            torch.manual_seed(number)
            output = task.valid_step(sample, model, criterion)[2]
            task.reduce_metrics([output], criterion)
    return logged.get_smoothed_values()


@pytest.mark.parametrize("arch", ["lstm_encdec_doc", "transformer_drill"])
def test_bleu_is_that_of_fairseqs_validation(arch):
    host = TranslationTask(TranslationConfig(**HOST), VOCABULARY, VOCABULARY)
    ours = ScoredTranslationTask(ScoredTranslationConfig(eval_scorer_args=GENERATION), VOCABULARY, VOCABULARY)
    found = validated(ours, build(ours, arch), batches(3))
    expected = validated(host, build(host, arch), batches(3))
    assert found["bleu"] == pytest.approx(expected["bleu"], abs=0.006) and found["bleu"] > 0.5
    assert found["loss"] == expected["loss"] and not any(name.startswith("_") for name in found)


@pytest.mark.parametrize("scorer", ["bleu", "rougeL"])
def test_logs_of_batches_and_processes_add_up(scorer):
    config = ScoredTranslationConfig(eval_scorer=scorer, eval_scorer_args=GENERATION)
    task = ScoredTranslationTask(config, VOCABULARY, VOCABULARY)
    model = build(task, "lstm_encdec_mos")
    expected = validated(task, model, batches(3))[scorer]
    criterion = CrossEntropyCriterion(task, sentence_avg=False)
    with torch.no_grad():
        outputs = []
        for number, sample in enumerate(batches(3)):
            torch.manual_seed(number)
            outputs.append(task.valid_step(sample, model, criterion)[2])
    summed = {name: torch.tensor(float(sum(log[name] for log in outputs[1:]))).double() for name in outputs[0]}
    for logs in ([outputs], [outputs[:1], outputs[1:]], [[outputs[0], summed]]):
        with metrics.aggregate(new_root=True) as logged:
            for log in logs:
                task.reduce_metrics(log, criterion)
        assert logged.get_smoothed_values()[scorer] == pytest.approx(expected, rel=1e-6)
    alone = []
    for log in outputs:
        with metrics.aggregate(new_root=True) as logged:
            task.reduce_metrics([log], criterion)
        alone.append(logged.get_smoothed_values()[scorer])
    assert scorer == "rougeL" or sum(alone) / 3 != pytest.approx(expected, rel=1e-3)


def test_decoding_draws_from_a_random_state_of_its_own():
    config = ScoredTranslationConfig(eval_scorer_args='{"beam": 1, "sampling": true, "max_len_b": 5}')
    task = ScoredTranslationTask(config, VOCABULARY, VOCABULARY)
    model = build(task, "lstm_encdec")
    before, criterion = torch.get_rng_state(), CrossEntropyCriterion(task, sentence_avg=False)
    task.valid_step(next(batches(1)), model, criterion)
    assert torch.equal(torch.get_rng_state(), before) and not model.training


def test_a_log_of_training_has_no_score():
    task = ScoredTranslationTask(ScoredTranslationConfig(), VOCABULARY, VOCABULARY)
    criterion = CrossEntropyCriterion(task, sentence_avg=False)
    with metrics.aggregate(new_root=True) as logged:
        task.reduce_metrics([{"loss": 1.0, "ntokens": 2, "nsentences": 1, "sample_size": 2}], criterion)
    assert "bleu" not in logged.get_smoothed_values()


def test_subwords_are_joined_and_the_tokenisation_undone():
    dictionary = make_dictionary(4)
    for word in ("H@@", "und", "it", "&apos;s", "."):
        dictionary.add_symbol(word)
    flags = dict(eval_scorer_remove_bpe="@@ ", eval_scorer_detok="moses", source_lang="de", target_lang="en")
    task = ScoredTranslationTask(ScoredTranslationConfig(**flags), dictionary, dictionary)
    assert task._text(torch.tensor([6, 7, 4, 5, 8, 2]), unknown="X") == "it's Hund."
    assert task._text(torch.tensor([3, 8]), unknown="X") == "X."


@pytest.fixture
def russian(tmp_path):
    """``russian(scorer, **flags)``: a task with targets in Russian. The dictionary lacks a word of each line."""
    (tmp_path / "dict.txt").write_text("кошка 2\nспит 1\n")
    for split in ("train", "valid"):
        (tmp_path / f"{split}.src-tgt.src").write_text("w1 w2\nw3\n")
        (tmp_path / f"{split}.src-tgt.tgt").write_text("кошка спит дома\nсобака спит\n")

    def task(scorer, **more):
        flags = dict(data=str(tmp_path), source_lang="src", target_lang="tgt", train_subset="train", dataset_impl="raw")
        flags.update(more)
        dictionary = Dictionary.load(str(tmp_path / "dict.txt"))
        return ScoredTranslationTask(ScoredTranslationConfig(eval_scorer=scorer, **flags), VOCABULARY, dictionary)

    return task


def test_references_in_another_script_than_the_metrics_are_refused_before_training(russian):
    for scorer, told in (("bleu", False), ("rouge1", True), ("rougeL", True)):
        task = russian(scorer)
        task.load_dataset("valid")  # as what reads the pairs of a trained model does
        build(task, "lstm_encdec")
        task.load_dataset("train")
        message = "line 1 of the references and 1 more have no word in a-z and 0-9.*reads: take --eval-scorer bleu or"
        with pytest.raises(ValueError, match=message) if told else nullcontext():
            task.load_dataset("valid")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ('"max_len_b": 5, "max_len_a": 0, "min_len": 5', None),
        ('"max_len_b": 5, "max_len_a": 0, "min_len": 6', "min_len 6 is above the 5 that max_len_a and max_len_b allow"),
        ('"max_len_b": 5, "max_len_a": 2.5, "min_len": 10', None),
        ('"max_len_b": 5, "max_len_a": 2.5, "min_len": 11', "min_len 11 is above the 10 that max_len_a and max_len_b"),
        ('"max_len_a": Infinity', "max_len_a inf: give a smaller number"),
        ('"max_len_a": 1e308', "max_len_a 1e.308: give a smaller number"),
        ('"match_source_len": true, "min_len": 3', "min_len 3 is above the 2 that match_source_len allows"),
    ],
)
def test_lengths_that_cannot_be_are_refused_before_training(arguments, message, russian):
    """The shortest source is "w3" with its end mark."""
    task = russian("bleu", eval_scorer_args=f"{{{arguments}}}")
    build(task, "lstm_encdec")
    with pytest.raises(ValueError, match=f"^--eval-scorer-args: {message}") if message else nullcontext():
        task.load_dataset("valid")


@pytest.mark.parametrize(
    "flags, message",
    [
        (dict(args="beam 4"), "--eval-scorer-args 'beam 4': give a JSON object, such as"),
        (dict(args="[]"), r"--eval-scorer-args '\[\]': give a JSON object"),
        (dict(eval_bleu=True), "--eval-bleu decodes as --eval-scorer bleu does: leave it out"),
        (dict(eval_bleu_args='{"beam": 4}'), "--eval-bleu-args is of --task translation: give --eval-scorer-args"),
        (dict(eval_bleu_print_samples=True), "--eval-bleu-print-samples is of --task translation: leave it out"),
        (dict(args='{"beam": "x"}'), "--eval-scorer-args: beam: Value 'x' of type 'str' could not be converted to Int"),
        (dict(args='{"max_len_b": 4.5}'), "--eval-scorer-args: max_len_b: Value '4.5'"),
        (dict(args='{"lenpen": null}'), "--eval-scorer-args: lenpen: field 'lenpen' is not Optional"),
        (dict(args='{"lenpen": NaN}'), "--eval-scorer-args: lenpen nan: give a number"),
        (dict(args='{"no_repeat_ngram_size": -1}'), "--eval-scorer-args: no_repeat_ngram_size -1: give at least 0"),
        (dict(args='{"beam": 0}'), "--eval-scorer-args: beam 0: give at least 1"),
        (dict(args='{"beem": 4}'), "--eval-scorer-args: generation while training has no argument beem; it has beam"),
        (dict(args='{"score_reference": true}'), "generation while training has no argument score_reference"),
        (dict(args='{"constraints": "ordered"}'), "generation while training has no argument constraints"),
        (dict(detok="mosses"), "--eval-scorer-detok mosses: choose one of .*moses.*space"),
        (dict(remove_bpe="@@@"), "--eval-scorer-remove-bpe '@@@' is no kind of subwords: give '@@ ', or sentencepiece"),
    ],
)
def test_wrong_flags_are_told_at_once(flags, message):
    config = ScoredTranslationConfig(
        **{name if "eval" in name else f"eval_scorer_{name}": value for name, value in flags.items()}
    )
    with pytest.raises(ValueError, match=message):
        ScoredTranslationTask(config, VOCABULARY, VOCABULARY)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ('{"temperature": 0}', "--temperature must be greater than 0"),
        ('{"sampling": true, "diversity_rate": 1}', "Provided Search parameters are mutually exclusive"),
        ('{"beam": 5, "diverse_beam_groups": 2}', "--beam 5: give a multiple of --diverse-beam-groups 2"),
        ('{"diverse_beam_groups": 2}', "--beam 5: give a multiple of --diverse-beam-groups 2"),
        ('{"sampling": true, "sampling_topk": 0}', "--sampling-topk 0: give 1 to "),
        ('{"sampling": true, "sampling_topk": 1000}', "--sampling-topk 1000: give 1 to "),
    ],
)
def test_arguments_that_do_not_go_together_are_told_when_the_model_is_built(arguments, message):
    task = ScoredTranslationTask(ScoredTranslationConfig(eval_scorer_args=arguments), VOCABULARY, VOCABULARY)
    with pytest.raises(ValueError, match=f"--eval-scorer-args: {message}"):
        build(task, "lstm_encdec")


def test_languages_are_for_any_tokeniser_and_values_of_the_flags_types():
    flags = dict(target_lang="de", eval_scorer_args='{"beam": "4", "lenpen": 1}')
    task = ScoredTranslationTask(ScoredTranslationConfig(**flags), VOCABULARY, VOCABULARY)
    build(task, "lstm_encdec")
    assert task._generator.beam_size == 4 and task._text(torch.tensor([4, 2]), unknown="X") == "w0"
