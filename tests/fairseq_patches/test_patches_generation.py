"""Every flag of fairseq-generate and fairseq-interactive has an effect, is refused, or is known to have none."""

import inspect
import sys
from dataclasses import fields
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Tuple

import fairseq_cli.generate
import fairseq_cli.interactive
import pytest
import torch
from builders import SOURCE_SIZE, VOCAB_SIZE, build_tiny_encdec, build_tiny_lm, build_tiny_transformer, make_task
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.dataclass.configs import (
    CommonConfig,
    CommonEvalConfig,
    DatasetConfig,
    GenerationConfig,
    InteractiveConfig,
)
from fairseq.ngram_repeat_block import NGramRepeatBlock
from fairseq.search import BeamSearch, DiverseBeamSearch, LengthConstrainedBeamSearch
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks import FairseqTask
from fairseq.token_generation_constraints import pack_constraints

from fairseq_plugins.fairseq_patches.generation import OF_OTHER_MODELS, VALUE_WITHOUT_A_FILE, HardAlignment

CONFIGS = (GenerationConfig, InteractiveConfig, CommonEvalConfig, DatasetConfig, CommonConfig)
PAD, EOS, UNK = 1, 2, 3
SOURCES = torch.tensor([[5, 6, 7, 2], [8, 9, 5, 2], [7, 7, 9, 2]])
MODELS = {
    "softmax": lambda: build_tiny_encdec("full"),
    "mixture": lambda: build_tiny_encdec("doc"),
    "Transformer": lambda: build_tiny_transformer("transformer_mos"),
}


class Hypothesis(NamedTuple):
    words: List[int]  # without the end mark
    score: float
    scores: torch.Tensor  # of the words and the end mark


class Searched:
    """The hypotheses of a model with flags."""

    def __init__(self, model):
        self.model = model.eval()
        self.task = make_task(VOCAB_SIZE, SOURCE_SIZE)

    def __call__(self, *, sources=SOURCES, seed=1, options=None, **flags) -> List[List[Hypothesis]]:
        torch.manual_seed(seed)
        config = GenerationConfig(**{"beam": 4, "max_len_b": 12, **flags})
        generator = FairseqTask.build_generator(self.task, [self.model], config)
        sample = {"net_input": {"src_tokens": sources, "src_lengths": sources.ne(PAD).sum(dim=1)}}
        found = generator.generate([self.model], sample, **(options or {}))
        return [
            [Hypothesis(one["tokens"].tolist()[:-1], float(one["score"]), one["positional_scores"]) for one in texts]
            for texts in found
        ]

    def greedy(self, **flags) -> List[List[int]]:
        return [texts[0].words for texts in self(beam=1, **flags)]


def all_of(found):
    return [hypothesis for texts in found for hypothesis in texts]


def num_repeated(words, size):
    ngrams = [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]
    return len(ngrams) - len(set(ngrams))


def check_beam(search):
    assert [len(texts) for texts in search(beam=7)] == [7, 7, 7]


def check_length(search):
    """Sources have four tokens with the end mark."""
    assert max(len(one.words) for one in all_of(search())) > 3
    assert max(len(one.words) for one in all_of(search(max_len_a=0.5, max_len_b=1))) == 3
    assert min(len(one.words) for one in all_of(search(max_len_a=2, min_len=9))) >= 9


def check_source_length(search):
    sources = torch.tensor([[5, 6, 7, 8, 9, 2], [PAD, PAD, PAD, 8, 9, 2], [PAD, PAD, PAD, PAD, PAD, 2]])
    found = search(sources=sources, match_source_len=True, max_len_b=200)
    assert [{len(one.words) for one in texts} for texts in found] == [{5}, {2}, {1}]


def check_scores(search):
    for flags, power in (({}, 1), ({"lenpen": 0.3}, 0.3), ({"lenpen": -2.0}, -2), ({"unnormalized": True}, 0)):
        for texts in search(**flags):
            expected = [float(one.scores.sum()) / len(one.scores) ** power for one in texts]
            assert [one.score for one in texts] == pytest.approx(expected, rel=1e-5, abs=1e-4)
            assert expected == sorted(expected, reverse=True)


def check_unknown_words(search):
    assert not any(UNK in one.words for one in all_of(search(unkpen=50.0)))
    assert all(set(one.words) == {UNK} for one in all_of(search(unkpen=-50.0, beam=1)))


def check_repetition(search):
    long = dict(min_len=10, unkpen=2.0)
    for size, flags in ((1, {}), (2, {}), (3, {}), (1, {"sampling": True}), (2, {"diverse_beam_groups": 2})):
        assert any(num_repeated(one.words, size) for one in all_of(search(**long, **flags))), "the check is none"
        found = search(**long, **flags, no_repeat_ngram_size=size)
        assert not any(num_repeated(one.words, size) for one in all_of(found))
    forced = torch.tensor([[6, 6, 6]] * 3)  # a prefix that is given is kept
    found = search(no_repeat_ngram_size=2, options={"prefix_tokens": forced})
    assert all(one.words[:3] == [6, 6, 6] and num_repeated(one.words[2:], 2) == 0 for one in all_of(found))


def check_sampling(search):
    one, again, other = (search(sampling=True, seed=seed) for seed in (1, 1, 2))
    words = [[text.words for text in all_of(found)] for found in (one, again, other)]
    assert words[0] == words[1] != words[2]


def check_best_words(search):
    """Only the most probable word can be drawn."""
    assert search.greedy(sampling=True, sampling_topk=1) == search.greedy()
    assert search.greedy(sampling=True, sampling_topp=1e-6) == search.greedy()
    assert search.greedy(sampling=True) != search.greedy()


def check_temperature(search):
    (hypothesis,), *_ = search(beam=1, temperature=2.5, sources=SOURCES[:1])
    expected = torch.log_softmax(log_probs(search.model, hypothesis.words) / 2.5, dim=-1)
    places = torch.arange(len(hypothesis.words) + 1)
    torch.testing.assert_close(hypothesis.scores, expected[places, [*hypothesis.words, EOS]], atol=1e-4, rtol=1e-4)


def log_probs(model, words):
    """Log-probabilities (T + 1, V) of each word after the first source, as in training."""
    with torch.no_grad():
        output = model(SOURCES[:1], torch.tensor([4]), torch.tensor([[EOS, *words]]))
        return model.get_normalized_probs(output, log_probs=True)[0]


def check_groups(search):
    """Groups of one hypothesis. A strong penalty keeps each from the words of the others."""
    for texts in search(diverse_beam_groups=4, diverse_beam_strength=1e4):
        assert len({one.words[0] for one in texts}) == 4
    for texts in search(diverse_beam_groups=4, diverse_beam_strength=0.0):
        assert len({tuple(one.words) for one in texts}) == 1


def check_siblings(search):
    """With this rate each hypothesis keeps only its best continuation: a greedy search from four words."""
    assert search(diversity_rate=0.0)[0][0].words == search()[0][0].words
    for texts in search(diversity_rate=1e4, max_len_b=5, unnormalized=True):
        assert len({one.words[0] for one in texts}) == 4


def check_constraints(search):
    wanted = [[torch.tensor([6, 6]), torch.tensor([11])], [], [torch.tensor([12])]]
    for order in ("ordered", "unordered"):
        found = search(constraints=order, options={"constraints": pack_constraints(wanted)})
        for texts, constraints in zip(found, wanted):
            for constraint in constraints:
                text = f" {' '.join(map(str, texts[0].words))} "
                assert f" {' '.join(map(str, constraint.tolist()))} " in text


def check_reference(search):
    config = GenerationConfig(score_reference=True)
    scorer = FairseqTask.build_generator(search.task, [search.model], config)
    target = torch.tensor([[6, 9, 4, EOS]])
    inputs = {"src_tokens": SOURCES[:1], "src_lengths": torch.tensor([4])}
    sample = {"net_input": {**inputs, "prev_output_tokens": target.roll(1)}, "target": target}
    ((found,),) = scorer.generate([search.model], sample)
    expected = log_probs(search.model, [6, 9, 4])[torch.arange(4), target[0]]
    torch.testing.assert_close(found["positional_scores"], expected, atol=1e-4, rtol=1e-4)


EFFECTS: Dict[str, Callable[[Searched], None]] = {
    "beam": check_beam,
    **dict.fromkeys(("max_len_a", "max_len_b", "min_len"), check_length),
    "match_source_len": check_source_length,
    **dict.fromkeys(("lenpen", "unnormalized"), check_scores),
    "unkpen": check_unknown_words,
    "no_repeat_ngram_size": check_repetition,
    **dict.fromkeys(("sampling", "seed"), check_sampling),
    **dict.fromkeys(("sampling_topk", "sampling_topp"), check_best_words),
    "temperature": check_temperature,
    **dict.fromkeys(("diverse_beam_groups", "diverse_beam_strength"), check_groups),
    "diversity_rate": check_siblings,
    "constraints": check_constraints,
    "score_reference": check_reference,
}
"""Flags that change hypotheses."""

TRANSLATION = "integration/test_translation_models.py"

ELSEWHERE: Dict[str, str] = {
    "nbest": f"{TRANSLATION}::test_the_n_best_hypotheses_are_in_order_and_differ",
    "print_alignment": f"{TRANSLATION}::test_alignments_name_a_source_word_for_each_target_word",
    "prefix_size": f"{TRANSLATION}::test_a_prefix_is_kept",
    **dict.fromkeys(("lm_path", "lm_weight"), f"{TRANSLATION}::test_a_language_model_votes_with_its_weight"),
    **dict.fromkeys(("num_shards", "shard_id"), f"{TRANSLATION}::test_shards_are_the_whole_and_are_scored"),
    **dict.fromkeys(
        ("quiet", "results_path", "post_process", "gen_subset", "no_seed_provided"),
        f"{TRANSLATION}::test_flags_of_the_output_change_it",
    ),
    "buffer_size": f"{TRANSLATION}::test_interactive_answers_whatever_comes_in_line_by_line_and_in_order",
    "replace_unk": "fairseq_patches/test_patches_generation.py::test_unknown_words_are_copied_or_looked_up",
    "retain_dropout": "models/test_retained_dropout.py::"
    "test_what_drops_in_training_drops_in_decoding_where_it_is_asked_for",
    "skip_invalid_size_inputs_valid_test": "fairseq_patches/test_data.py::"
    "test_one_that_may_not_be_left_out_is_refused_with_the_limits",
    **dict.fromkeys(("path", "user_dir", "cpu", "input"), f"{TRANSLATION}::test_beam_search_translates"),
    "fp16": f"{TRANSLATION}::test_a_transformer_learns_and_translates_in_each_precision_of_fairseq",
}
"""Tests of flags that belong to a command and not to a search, or that need a trained model."""

WITHOUT_EFFECT: Dict[str, str] = {
    **dict.fromkeys(("no_early_stop", "no_beamable_mm"), "deprecated, fairseq does not read it"),
    **dict.fromkeys(
        ("num_workers", "data_buffer_size", "no_progress_bar", "log_interval", "log_format"), "speed, logs"
    ),
    **dict.fromkeys(
        ("max_tokens", "batch_size", "required_batch_size_multiple", "required_seq_len_multiple", "dataset_impl"),
        "how the data are read and batched: changes scores by rounding alone",
    ),
    "model_overrides": "sets what a checkpoint says; a model's weights have to fit",
    **dict.fromkeys(
        (
            *("train_subset", "valid_subset", "combine_valid_subsets", "ignore_unused_valid_subsets"),
            *("validate_interval", "validate_interval_updates", "validate_after_updates", "fixed_validation_seed"),
            *("disable_validation", "max_tokens_valid", "batch_size_valid", "max_valid_steps", "curriculum"),
            *("grouped_shuffling", "update_epoch_batch_itr", "update_ordered_indices_seed"),
            *("bf16", "memory_efficient_bf16", "memory_efficient_fp16", "fp16_no_flatten_grads", "fp16_init_scale"),
            *("fp16_scale_window", "fp16_scale_tolerance", "on_cpu_convert_precision", "min_loss_scale"),
            *("threshold_loss_scale", "amp", "amp_batch_retries", "amp_init_scale", "amp_scale_window", "tpu"),
            *("empty_cache_freq", "all_gather_list_size", "model_parallel_size", "quantization_config_path"),
            *("profile", "reset_logging", "suppress_crashes", "use_plasma_view", "plasma_path", "aim_repo"),
            *("aim_run_hash", "tensorboard_logdir", "wandb_project", "azureml_logging", "log_file"),
        ),
        "of training, whose flags the parsers share",
    ),
}
"""Flags of fairseq that change no hypothesis; ``fairseq_patches/README.md`` lists them."""

REFUSED: Dict[str, Tuple[str, str, str]] = {
    "beam_mt": (
        "generate",
        "--beam-mt 3",
        "--beam-mt 3 is of models of speech that decode in two passes",
    ),
    "max_len_a_mt": ("generate", "--max-len-a-mt 3", "is of models of speech"),
    "max_len_b_mt": ("generate", "--max-len-b-mt 3", "is of models of speech"),
    "lenpen_mt": ("interactive", "--lenpen-mt 3", "is of models of speech"),
    "eos_token": ("generate", "--eos-token x", "--eos-token x is of models of speech: leave it out"),
    "iter_decode_eos_penalty": ("generate", "--iter-decode-eos-penalty 1", "models that refine a translation"),
    "iter_decode_max_iter": ("interactive", "--iter-decode-max-iter 3", "models that refine a translation"),
    "iter_decode_force_max_iter": ("generate", "--iter-decode-force-max-iter", "models that refine a translation"),
    "iter_decode_with_beam": ("generate", "--iter-decode-with-beam 2", "models that refine a translation"),
    "iter_decode_with_external_reranker": ("generate", "--iter-decode-with-external-reranker", "that refine"),
    "retain_iter_history": ("generate", "--retain-iter-history", "models that refine a translation"),
    "decoding_format": ("generate", "--decoding-format vote", "models that refine a translation"),
    "print_step": ("interactive", "--print-step", "models that refine a translation (--task translation_lev)"),
    "sacrebleu": ("generate", "--sacrebleu", "--sacrebleu has no effect: give --scoring sacrebleu"),
    "retain_dropout_modules": (
        "generate",
        "--retain-dropout --retain-dropout-modules X",
        "--retain-dropout-modules: models of this package drop in all modules or in none: leave it out",
    ),
}
"""Flags that none of our models can obey: program, arguments and message."""

WRONG: List[Tuple[str, str, str]] = [
    ("generate", "--nbest 9", "--nbest 9: give --beam 9 or more"),
    ("generate", "--max-len-b -3", "--max-len-b -3: give at least 0"),
    ("generate", "--min-len 300", "--max-len-b 200 is below --min-len 300: no hypothesis could end"),
    ("generate", "--match-source-len --min-len 4", "--min-len 4 has no effect with --match-source-len: leave out one"),
    ("interactive", "--unnormalized --lenpen 2", "--lenpen 2.0 has no effect with --unnormalized"),
    ("generate", "--unkpen inf", "--unkpen inf: give a number"),
    ("generate", "--replace-unk", "--replace-unk reads the words of the source: give --dataset-impl raw"),
    ("interactive", "--replace-unk", "--replace-unk needs the words that the attention reads most: add"),
    ("interactive", "--replace-unk nowhere --print-alignment", "--replace-unk nowhere is no file"),
    ("generate", "--score-reference --print-alignment soft", "--print-alignment soft has no effect with"),
    ("generate", "--score-reference --temperature 2", "--temperature 2.0 has no effect with --score-reference"),
    ("generate", "--prefix-size -1", "--prefix-size -1: give at least 0"),
    ("generate", "--no-repeat-ngram-size -1", "--no-repeat-ngram-size -1: give at least 0"),
    ("generate", "--sampling", "--sampling: --beam 5 draws as many samples: give --nbest 5, or --beam 1"),
    ("interactive", "--sampling --beam 3", "--sampling: --beam 3 draws as many samples: give --nbest 3"),
    ("generate", "--sampling-topk 3", "--sampling-topk 3 has no effect without --sampling: give both"),
    ("generate", "--sampling --beam 1 --sampling-topk 0", "--sampling-topk 0: give at least 1"),
    ("generate", "--sampling --beam 1 --sampling-topp 0", "--sampling-topp 0.0: give a number above 0, up to 1"),
    ("generate", "--sampling --beam 1 --sampling-topp .5 --sampling-topk 3", "--sampling-topp 0.5 has no effect with"),
    ("generate", "--constraints", "--constraints: fairseq-interactive alone reads them, behind tabs; leave it out"),
    ("interactive", "--constraints --diversity-rate 1", "--diversity-rate and --constraints are two kinds of search"),
    ("generate", "--temperature 0", "--temperature 0.0: give a number above 0"),
    ("generate", "--diverse-beam-groups 3", "--diverse-beam-groups 3 must divide --beam 5"),
    ("generate", "--diverse-beam-groups 0", "--diverse-beam-groups 0: give at least 1"),
    (
        "generate",
        "--diverse-beam-strength 3",
        "--diverse-beam-strength 3.0 has no effect without",
    ),
    ("generate", "--diversity-rate -0.5", "--diversity-rate -0.5: give at least 0"),
    ("generate", "--lm-weight 1", "--lm-weight 1.0 has no effect without --lm-path: give both, or neither"),
    ("generate", "--remove-bpe=foo", "--remove-bpe=foo: give subword_nmt or sentencepiece, or no value"),
    ("generate", "--model-overrides [1]", '--model-overrides "[1]": give a dictionary'),
    ("generate", "--num-shards 2 --shard-id 2", "--shard-id 2: the numbers of --num-shards 2 are 0 to 1"),
    ("generate", "--num-shards 2 --results-path x", "--results-path: shards would replace each other's file there"),
    ("generate", "--results-path setup.py", "--results-path setup.py is a file: give a folder"),
    ("generate", "--max-tokens 0", "--max-tokens 0: give at least 1"),
    ("generate", "--tokenizer moses", "--tokenizer moses needs --source-lang: give it"),
    ("generate", "--bpe subword_nmt", "--bpe subword_nmt needs --bpe-codes: give it"),
    ("interactive", "--bpe subword_nmt --bpe-codes nowhere", "--bpe-codes nowhere is no file"),
    ("generate", "--bpe characters", "--bpe characters: fairseq cannot configure it; give another"),
    ("interactive", "--print-alignment soft", "--print-alignment soft: fairseq-interactive cannot print it"),
    ("interactive", "--batch-size 4", "--batch-size 4: give --buffer-size 4 or more"),
    ("interactive", "--input nowhere", "--input nowhere is no file: give one, or - for the standard input"),
    ("interactive", "--prefix-size 2", "--prefix-size 2: leave it out of fairseq-interactive, there is no reference"),
    ("interactive", "--lm-path x --lm-weight 1", "--lm-path x: leave it out of fairseq-interactive, it is not read"),
    ("interactive", "--num-shards 2", "--num-shards 2: leave it out of fairseq-interactive, it is not read"),
]
"""Impossible values and combinations of flags."""


def test_every_flag_of_fairseq_is_known():
    names = [one.name for config in CONFIGS for one in fields(config) if one.name != "_name"]
    known = [*EFFECTS, *ELSEWHERE, *WITHOUT_EFFECT, *REFUSED]
    assert len(known) == len(set(known)), "a flag is in two tables"
    assert sorted(known) == sorted(names)
    assert set(OF_OTHER_MODELS) < set(REFUSED)
    tests = Path(__file__).parents[1]
    for place in ELSEWHERE.values():
        file, _, name = place.partition("::")
        assert f"def {name}(" in (tests / file).read_text(), place
    listed = (tests.parent / "fairseq_plugins/fairseq_patches/README.md").read_text()
    for name in WITHOUT_EFFECT:
        assert f"`--{name.replace('_', '-')}`" in listed, name


@pytest.fixture(scope="module", params=MODELS)
def search(request):
    return Searched(MODELS[request.param]())


@pytest.mark.parametrize("check", dict.fromkeys(EFFECTS.values()), ids=lambda check: check.__name__)
def test_a_flag_of_the_search_does_what_it_says(check, search):
    check(search)


@pytest.mark.parametrize("program, given, message", [*REFUSED.values(), *WRONG])
def test_what_cannot_be_obeyed_is_told_in_one_line_before_anything_is_read(
    program, given, message, monkeypatch, capsys
):
    monkeypatch.chdir(Path(__file__).parents[2])
    monkeypatch.setattr(sys, "argv", [program, "no data", "--path", "no-model.pt", *given.split()])
    with pytest.raises(SystemExit) as end:
        getattr(fairseq_cli, program).cli_main()
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        end.value.code == 2
        and message in line
        and line.startswith(f"{program}: error: --" if "Cannot" not in message else "")
    )


@pytest.mark.parametrize(
    "flags, message",
    [
        (
            dict(sampling=True, sampling_topk=900),
            "--sampling-topk 900: the target's dictionary has 23 words",
        ),
        (
            dict(diverse_beam_groups=2, beam=40),
            "--beam 40: with groups it must be below 23, the words",
        ),
        (
            dict(diversity_rate=1.0, beam=20),
            "--beam 20: with --diversity-rate it may be up to 11",
        ),
        (dict(min_len=64, max_len_b=300), "--min-len 64: the models write up to 63 tokens, give fewer"),
        (dict(temperature=0.0), "--temperature 0.0: give a number above 0"),
        (dict(max_len_a=0.5, max_len_b=1, min_len=5), "--min-len 5: of sources of 4 tokens, hypotheses have up to 3"),
    ],
)
def test_from_python_too_what_a_model_cannot_do_is_refused(flags, message):
    with pytest.raises(ValueError, match=message):
        Searched(MODELS["Transformer"]())(**flags)


@pytest.mark.parametrize(
    "name, value", [("print_alignment", "hard"), ("match_source_len", True), ("constraints", "ordered")]
)
def test_a_language_model_has_no_source(name, value):
    flag = f"--{name.replace('_', '-')}"
    with pytest.raises(ValueError, match=f"{flag}: a language model has no source: leave it out"):
        Searched(build_tiny_lm("doc"))(**{name: value}, max_len_b=200)


def test_alignments_need_attention():
    for kind in ("hard", "soft"):
        with pytest.raises(ValueError, match="--print-alignment needs a model with attention"):
            Searched(build_tiny_encdec("full", attention="none", input_feeding="off"))(print_alignment=kind)


# what fairseq does without the patches


@pytest.fixture
def generator():
    model = build_tiny_encdec("full").eval()
    dictionary = model.decoder.dictionary
    search = DiverseBeamSearch(dictionary, num_groups=2, diversity_strength=0.7)
    return SequenceGenerator([model], dictionary, beam_size=4, max_len_b=6, search_strategy=search)


def written(generator, *, numbers, search=SequenceGenerator._generate):
    """The texts of each source, if the sources have these numbers in the data set."""
    sample = {"net_input": {"src_tokens": SOURCES, "src_lengths": torch.full((3,), 4)}}
    if numbers is not None:
        sample["id"] = torch.tensor(numbers)
    with torch.no_grad():
        found = search(generator, sample)
    return [[one["tokens"].tolist() for one in texts] for texts in found]


@pytest.mark.parametrize("numbers", [[0, 1, 2], [2, 0, 1], [7, 8, 9]])
def test_numbers_in_the_data_set_decide_nothing(numbers, generator):
    assert written(generator, numbers=numbers) == written(generator, numbers=None)


def test_groups_differ(generator):
    diverse = written(generator, numbers=[7, 8, 9])
    generator.search = BeamSearch(generator.tgt_dict)
    assert diverse != written(generator, numbers=[7, 8, 9])


def test_fairseq_alone_takes_numbers_for_places(generator):
    alone = inspect.unwrap(SequenceGenerator._generate)
    with pytest.raises(IndexError):
        written(generator, numbers=[7, 8, 9], search=alone)


def test_fairseq_alone_repeats_ngrams():
    tokens = torch.tensor([[EOS, 5, 6, 5, PAD, PAD, PAD]])
    blocker = NGramRepeatBlock(2, use_extension=False)
    assert blocker(tokens, torch.zeros(1, 9), 1, 1, 3)[0].isinf().nonzero().tolist() == [[6]]
    alone = inspect.unwrap(NGramRepeatBlock.forward)
    assert not alone(blocker, tokens, torch.zeros(1, 9), 1, 1, 3).isinf().any()


def test_fairseq_alone_counts_the_end_mark():
    search = LengthConstrainedBeamSearch(make_task(9).target_dictionary, 1, 0, 1, 0)
    inspect.unwrap(LengthConstrainedBeamSearch.set_src_lengths)(search, torch.tensor([4]))
    assert search.src_lengths.tolist() == [4]
    search.set_src_lengths(torch.tensor([4]))
    assert search.src_lengths.tolist() == [3]


@pytest.fixture
def dictionary():
    dictionary = Dictionary()
    for word in ("ein", "H@@", "und"):
        dictionary.add_symbol(word)
    return dictionary


def aligned(*pairs, num_source_words):
    return HardAlignment(pairs, num_source_words=num_source_words)


def replaced(dictionary, text, *, source, alignment, table=None, **options):
    tokens = dictionary.encode_line(text, add_if_not_exist=False)
    _, found, kept = utils.post_process_prediction(
        tokens, source, alignment, {} if table is None else table, dictionary, **options
    )
    assert kept is alignment
    return found


def test_unknown_words_are_copied_or_looked_up(dictionary):
    options = dict(source="a Dackel saw", alignment=aligned((0, 0), (2, 2), (1, 1), num_source_words=3))
    assert replaced(dictionary, "ein X ein", **options) == "ein Dackel ein"
    assert replaced(dictionary, "X X X", table={"saw": "sah"}, **options) == "a Dackel sah"


def test_subwords_are_joined_after_that(dictionary):
    options = dict(source="a dog Bello", alignment=aligned((0, 0), (1, 1), (2, 2), num_source_words=3))
    assert replaced(dictionary, "ein H@@ X", **options, remove_bpe="@@ ") == "ein HBello"


def test_the_source_has_the_subwords_that_the_model_read(dictionary):
    options = dict(alignment=aligned((1, 0), (2, 1), num_source_words=3))
    assert replaced(dictionary, "X ein", source="H@@ und saw", **options, remove_bpe="@@ ") == "und ein"
    with pytest.raises(ValueError, match="it read 3 and the source has 2, 'Hund saw'; leave out --bpe and --tokenizer"):
        replaced(dictionary, "X ein", source="Hund saw", **options)


def test_the_words_that_the_model_read_are_counted_without_padding_and_end():
    source, target, attention = torch.tensor([1, 1, 5, 6, 2]), torch.tensor([7, 2, 1]), torch.eye(3, 5).flip(1)
    found = utils.extract_hard_alignment(attention, source, target, 1, 2)
    assert found == utils.extract_hard_alignment.__wrapped__(attention, source, target, 1, 2)
    assert len(found) == 1 and found.num_source_words == 2


def test_a_model_without_attention_aligns_nothing():
    with pytest.raises(ValueError, match="--print-alignment needs a model with attention: leave it out"):
        utils.extract_hard_alignment(torch.empty(0), torch.tensor([5, 2]), torch.tensor([7, 2]), 1, 2)


def test_nothing_changes_without_the_flag(dictionary):
    tokens = dictionary.encode_line("ein H@@ und", add_if_not_exist=False)
    found = utils.post_process_prediction(tokens, "a b", [(0, 0)], None, dictionary, "@@ ")
    expected = utils.post_process_prediction.__wrapped__(tokens, "a b", [(0, 0)], None, dictionary, "@@ ")
    assert found[1:] == expected[1:] and found[1] == "ein Hund" and torch.equal(found[0], expected[0])


@pytest.mark.parametrize("alignment", [torch.empty(0), [["0.5", "0.5"]]], ids=["none", "soft"])
def test_what_is_missing_is_told(alignment, dictionary):
    with pytest.raises(ValueError, match="--replace-unk needs the words .* add --print-alignment hard"):
        replaced(dictionary, "ein X", source="a b", alignment=alignment)


def test_fairseq_alone_cannot_replace(dictionary):
    tokens = dictionary.encode_line("ein X", add_if_not_exist=False)
    with pytest.raises(TypeError, match="list indices must be integers"):
        utils.post_process_prediction.__wrapped__(tokens, "a b", [(0, 0), (1, 1)], {}, dictionary)
    with pytest.raises(FileNotFoundError):
        utils.load_align_dict.__wrapped__(VALUE_WITHOUT_A_FILE)
    assert utils.load_align_dict(VALUE_WITHOUT_A_FILE) == {} and utils.load_align_dict(None) is None
