"""Flags of fairseq's generation that do what they say only with the patches."""

import inspect
from types import SimpleNamespace

import pytest
import torch
from builders import SOURCE_SIZE, VOCAB_SIZE, build_tiny_encdec, dictionary_of, make_dictionary, make_task
from fairseq import options, utils
from fairseq.data import ListDataset
from fairseq.data.iterators import EpochBatchIterator
from fairseq.dataclass.configs import GenerationConfig
from fairseq.ngram_repeat_block import NGramRepeatBlock
from fairseq.search import BeamSearch, DiverseBeamSearch, LengthConstrainedBeamSearch
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks import FairseqTask

from fairseq_plugins.fairseq_patches.generation import VALUE_WITHOUT_A_FILE, HardAlignment
from fairseq_plugins.options import UserError

PAD, EOS = 1, 2
SOURCES = torch.tensor([[5, 6, 7, 2], [8, 9, 5, 2], [7, 7, 9, 2]])


def hypotheses(model, *, sources=SOURCES, prefix=None, **flags):
    """The words of all hypotheses, without end marks, for each source."""
    task = make_task(VOCAB_SIZE, SOURCE_SIZE)
    config = GenerationConfig(**{"beam": 4, "max_len_b": 12, **flags})
    generator = FairseqTask.build_generator(task, [model.eval()], config)
    sample = {"net_input": {"src_tokens": sources, "src_lengths": sources.ne(PAD).sum(dim=1)}}
    found = generator.generate([model], sample, prefix_tokens=prefix)
    return [[one["tokens"].tolist()[:-1] for one in texts] for texts in found]


@pytest.fixture(scope="module")
def model():
    return build_tiny_encdec("doc")


def test_lengths_match_those_of_the_source(model):
    sources = torch.tensor([[5, 6, 7, 8, 9, 2], [PAD, PAD, PAD, 8, 9, 2], [PAD, PAD, PAD, PAD, PAD, 2]])
    found = hypotheses(model, sources=sources, match_source_len=True, max_len_b=200)
    assert [{len(words) for words in texts} for texts in found] == [{5}, {2}, {1}]


@pytest.mark.parametrize(
    "flags, message",
    [
        ({"sampling": True, "sampling_topk": VOCAB_SIZE + 1}, f"--sampling-topk {VOCAB_SIZE + 1}: give 1 to"),
        ({"beam": 4, "diverse_beam_groups": 3}, "--beam 4: give a multiple of --diverse-beam-groups 3"),
    ],
)
def test_flags_that_fairseq_refuses_while_it_decodes_or_not_at_all(flags, message, model):
    with pytest.raises(UserError, match=message):
        hypotheses(model, **flags)


@pytest.mark.parametrize("flags", [{}, {"sampling": True}, {"sampling": True, "sampling_topp": 0.5}])
def test_probabilities_that_are_nan_are_told(flags):
    model = build_tiny_encdec("doc")
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(UserError, match="the model gives no word a probability but NaN"):
        hypotheses(model, **flags)


def num_repeated(texts, size):
    """How many n-grams of the hypotheses stood in them before."""
    ngrams = [[tuple(words[n : n + size]) for n in range(len(words) - size + 1)] for text in texts for words in text]
    return sum(len(found) - len(set(found)) for found in ngrams)


@pytest.mark.parametrize(
    "size, flags", [(1, {}), (2, {}), (3, {}), (1, {"sampling": True}), (2, {"diverse_beam_groups": 2})]
)
def test_no_ngram_is_repeated(size, flags, model):
    flags = {"min_len": 10, "unkpen": 2.0, **flags}
    assert num_repeated(hypotheses(model, **flags), size) > 0
    assert num_repeated(hypotheses(model, **flags, no_repeat_ngram_size=size), size) == 0


def test_a_prefix_that_repeats_ngrams_is_kept(model):
    found = hypotheses(model, prefix=torch.tensor([[6, 6, 6]] * 3), no_repeat_ngram_size=2)
    assert all(words[:3] == [6, 6, 6] for texts in found for words in texts)
    assert num_repeated([[words[2:] for words in texts] for texts in found], 2) == 0


def read(parse_args_and_arch, *flags):
    return parse_args_and_arch(options.get_generation_parser(), ["data", "--path", "a.pt", *flags])


def test_shards_and_seeds_reach_fairseq_generate_unlike_by_fairseq_alone(capsys):
    args = read(options.parse_args_and_arch, "--num-shards", "3", "--shard-id", "1", "--no-seed-provided")
    assert (args.distributed_world_size, args.distributed_rank, args.no_seed_provided) == (3, 1, True)
    assert not read(options.parse_args_and_arch).no_seed_provided
    for flag in ("--results-path=folder", "--constraints", "--print-step", "--retain-iter-history"):
        with pytest.raises(SystemExit):
            read(options.parse_args_and_arch, "--num-shards", "3", flag)
        assert f"error: {flag.partition('=')[0]}" in capsys.readouterr().err
    assert read(options.parse_args_and_arch, "--print-step", "--task", "translation_lev").print_step
    parser, given = options.get_interactive_generation_parser(), ["data", "--path", "a.pt", "--num-shards", "3"]
    assert options.parse_args_and_arch(parser, given).distributed_world_size < 3  # fairseq-interactive has no shards
    alone = inspect.unwrap(options.parse_args_and_arch)
    args = read(alone, "--num-shards", "3", "--shard-id", "1", "--no-seed-provided")
    assert args.distributed_world_size < 3 and not args.no_seed_provided


def test_a_shard_has_batches_unlike_by_fairseq_alone():
    def shard(shard_id):
        return EpochBatchIterator(ListDataset("ab"), list, [[0], [1]], num_shards=3, shard_id=shard_id)

    assert list(shard(1).next_epoch_itr(shuffle=False)) == [["b"]]
    with pytest.raises(UserError, match="^--shard-id 2 is empty: the data's batches fill 2 of 3 shards"):
        shard(2).next_epoch_itr(shuffle=False)
    assert list(inspect.unwrap(EpochBatchIterator.next_epoch_itr)(shard(2), shuffle=False)) == [[]]


def test_a_language_model_has_the_words_of_the_translator_and_fairseq_alone_takes_others():
    models, config = [build_tiny_encdec("full")], GenerationConfig(lm_path="lm.pt", lm_weight=0.5)
    task = make_task(VOCAB_SIZE, SOURCE_SIZE)
    same, other = (SimpleNamespace(decoder=SimpleNamespace(dictionary=make_dictionary(n))) for n in (VOCAB_SIZE, 9))
    for build, model in (
        (FairseqTask.build_generator, same),
        (inspect.unwrap(FairseqTask.build_generator), other),
    ):
        assert build(task, models, config, extra_gen_cls_kwargs={"lm_model": None}).lm_model is None
        with pytest.raises(AttributeError, match="eval"):  # of a generator that takes this stand-in
            build(task, models, config, extra_gen_cls_kwargs={"lm_model": model})
    with pytest.raises(UserError, match="--lm-path lm.pt has another dictionary"):
        FairseqTask.build_generator(task, models, config, extra_gen_cls_kwargs={"lm_model": other})
    with pytest.raises(UserError, match="--lm-path lm.pt is a translator"):
        FairseqTask.build_generator(task, models, config, extra_gen_cls_kwargs={"lm_model": models[0]})


# what fairseq does without the patches


def test_numbers_in_the_data_set_decide_nothing_and_fairseq_alone_takes_them_for_places():
    model = build_tiny_encdec("full").eval()
    dictionary = model.decoder.dictionary
    search = DiverseBeamSearch(dictionary, num_groups=2, diversity_strength=0.7)
    generator = SequenceGenerator([model], dictionary, beam_size=4, max_len_b=6, search_strategy=search)

    def written(generate=SequenceGenerator._generate, **numbers):
        sample = {"net_input": {"src_tokens": SOURCES, "src_lengths": torch.full((3,), 4)}, **numbers}
        with torch.no_grad():
            found = generate(generator, sample)
        return [[one["tokens"].tolist() for one in texts] for texts in found]

    diverse = written()
    for numbers in ([2, 0, 1], [7, 8, 9]):
        assert written(id=torch.tensor(numbers)) == diverse
    with pytest.raises(IndexError):
        written(inspect.unwrap(SequenceGenerator._generate), id=torch.tensor([7, 8, 9]))
    generator.search = BeamSearch(dictionary)
    assert written() != diverse


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
    return dictionary_of(("ein", "H@@", "und"))


def replaced(dictionary, text, *, source, alignment, table=None, **options):
    tokens = dictionary.encode_line(text, add_if_not_exist=False)
    _, found, kept = utils.post_process_prediction(
        tokens, source, alignment, {} if table is None else table, dictionary, **options
    )
    assert kept is alignment
    return found


@pytest.mark.parametrize(
    "text, source, alignment, options, expected",
    [
        ("ein X ein", "a saw Dackel", [(0, 0), (1, 2), (2, 1)], {}, "ein Dackel ein"),
        ("X X X", "a saw Dackel", [(0, 0), (1, 2), (2, 1)], {"table": {"saw": "sah"}}, "a Dackel sah"),
        ("ein H@@ X", "a dog Bello", [(0, 0), (1, 1), (2, 2)], {"remove_bpe": "@@ "}, "ein HBello"),
        ("X ein", "H@@ und saw", [(1, 0), (2, 1)], {"remove_bpe": "@@ "}, "und ein"),
    ],
)
def test_unknown_words_are_copied_or_looked_up_before_subwords_are_joined(
    text, source, alignment, options, expected, dictionary
):
    alignment = HardAlignment(alignment, num_source_words=3)
    assert replaced(dictionary, text, source=source, alignment=alignment, **options) == expected


def test_the_source_has_the_subwords_that_the_model_read(dictionary):
    alignment = HardAlignment([(1, 0), (2, 1)], num_source_words=3)
    with pytest.raises(ValueError, match="it read 3 and the source has 2, 'Hund saw'; leave out --bpe and --tokenizer"):
        replaced(dictionary, "X ein", source="Hund saw", alignment=alignment, remove_bpe="@@ ")


def test_the_words_that_the_model_read_are_counted_without_padding_and_end():
    source, target, attention = torch.tensor([1, 1, 5, 6, 2]), torch.tensor([7, 2, 1]), torch.eye(3, 5).flip(1)
    found = utils.extract_hard_alignment(attention, source, target, 1, 2)
    assert found == utils.extract_hard_alignment.__wrapped__(attention, source, target, 1, 2)
    assert len(found) == 1 and found.num_source_words == 2


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
