"""Texts that models write: against their own scores, and against every text there is."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from builders import FAIRSEQ_ARCHITECTURES, build_fairseq_lm, build_tiny_gated_lm, build_tiny_lm

from fairseq_plugins.evaluation.generation import GenerationOptions, Sampling, TextGenerator
from fairseq_plugins.evaluation.language_model import TrainedLanguageModel
from fairseq_plugins.evaluation.raw_text import Blanks, SideText
from fairseq_plugins.evaluation.scoring import prepare_to_score, score_sequences
from fairseq_plugins.output_layers import base

END, TOLERANCE = "</s>", 1e-10


def lm_of(*models):
    return TrainedLanguageModel(models, SideText(Blanks()))


@pytest.fixture
def model():
    return build_tiny_lm("doc", seed=1).double()


@pytest.fixture
def lm(model):
    return lm_of(model)


def scores_of(lm, prefix, found):
    """Log-probabilities of the generated tokens, with each sequence read at once."""
    numbers = [lm.dictionary.index(token) for token in [*prefix.split(), *found.tokens]]
    (scored,) = score_sequences(lm.models, [torch.tensor(numbers)])
    return (-scored[len(prefix.split()) :]).tolist()


def assert_written(lm, prefix, found, tolerance=TOLERANCE):
    assert found.log_probs == pytest.approx(scores_of(lm, prefix, found), rel=tolerance)
    assert found.total == pytest.approx(sum(found.log_probs))
    words = found.tokens[:-1] if found.tokens[-1] == END else found.tokens
    assert found.text == " ".join([*prefix.split(), *words])


MODELS = {
    "one": lambda: [build_tiny_lm("tied")],
    "gated": lambda: [build_tiny_gated_lm("tied", "mos")],
    "ensemble": lambda: [build_tiny_lm("tied", seed=1), build_tiny_lm("mos", seed=2)],
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("prefix", ["", "w1 w2 blorp"])
def test_log_probabilities_are_those_of_the_text_that_was_written(kind, prefix):
    lm = lm_of(*(model.double() for model in MODELS[kind]()))
    for beam in (None, 3):
        for found in lm.continuations(prefix, num=3, beam=beam, max_length=9):
            assert_written(lm, prefix, found)


@pytest.mark.parametrize("arch", FAIRSEQ_ARCHITECTURES)
def test_fairseqs_models_write_too(arch):
    fairseq_lm = build_fairseq_lm(arch).double().eval()
    for models in ([fairseq_lm], [fairseq_lm, build_tiny_lm("tied").double()]):
        lm = lm_of(*models)
        for options in ({"num": 4}, {"beam": 3}):
            for found in lm.continuations("w1 w2", max_length=8, **options):
                assert_written(lm, "w1 w2", found, tolerance=1e-5)
    for beam in (None, 2):  # longer than it reads at once
        (found,) = lm_of(fairseq_lm).continuations("w1 w2 w3", beam=beam, max_length=20, stop="length")
        assert found.log_probs == pytest.approx(scores_of(lm_of(fairseq_lm), "w1 w2 w3", found), rel=1e-5)
    (after,) = lm.continuations("w1", after=["w1 w2"] * 9, max_length=8)
    assert after.log_probs != pytest.approx(scores_of(lm, "w1", after), rel=1e-5)


def test_log_probabilities_are_in_the_precision_that_was_asked_for(monkeypatch):
    monkeypatch.setattr(base, "has_native_bfloat16", lambda device: True)
    lm = lm_of(build_tiny_lm("doc", seed=1, output_precision="bfloat16"))
    found = {}
    for precision in ("bfloat16", "float32"):
        prepare_to_score(lm.models, device="cpu", precision=precision)
        (found[precision],) = lm.continuations("w1", beam=1, max_length=9)
    assert_written(lm, "w1", found["float32"], tolerance=1e-5)
    assert found["float32"].log_probs != pytest.approx(found["bfloat16"].log_probs, rel=1e-5)


def test_equal_seeds_give_equal_texts_that_depend_on_nothing_else(lm):
    def tokens_of(prefix, **options):
        return [found.tokens for found in lm.continuations(prefix, max_length=20, **options)]

    alone = tokens_of("w1", seed=7, num=3)
    tokens_of("w2 w3")
    torch.manual_seed(5)
    assert tokens_of("w1", seed=7, num=5)[:3] == alone
    assert len({tuple(tokens) for tokens in alone}) == 3
    assert alone[0] != tokens_of("w1", seed=8)[0] != tokens_of("w2", seed=8)[0]
    assert tokens_of("w1") == tokens_of("w1", seed=1)


def test_texts_that_are_drawn_in_groups_are_those_that_are_drawn_together(lm, monkeypatch):
    options = dict(seed=7, num=7, max_length=12)
    together = [found.tokens for found in lm.continuations("w1", **options)]
    monkeypatch.setattr("fairseq_plugins.evaluation.generation.ROWS_AT_A_TIME", 3)
    assert [found.tokens for found in lm.continuations("w1", **options)] == together


def test_first_words_are_drawn_by_their_probabilities(lm):
    words = [found.tokens[0] for found in lm.continuations("w1", num=4000, max_length=1, stop="length")]
    for word in ("w0", "w5", "w9"):
        expected = torch.tensor(lm.score([f"w1 {word}"])[0].log_probs[1]).exp().item()
        assert words.count(word) / 4000 == pytest.approx(expected, abs=4 * (expected / 4000) ** 0.5)


def test_threads_write_the_same_texts(model, lm):
    prefixes, options = ["", "w1", "w2 w3", "w4"] * 4, GenerationOptions(num=2, max_length=10)
    generator = TextGenerator([model], SideText(Blanks()), options)
    with ThreadPoolExecutor(4) as threads, generator.open_stream([]) as start:
        together = list(threads.map(lambda prefix: generator.continuations(prefix, after=start), prefixes))
    assert together == list(lm.continue_stream(prefixes, options))
    assert not model.decoder.carried_state._streams


def test_a_prefix_follows_earlier_text(lm):
    earlier = ["w1 w2", "w3"]
    found, again = lm.continue_stream(["w4", "w4"], GenerationOptions(max_length=6), after=earlier)
    searched = lm.continuations("w4", beam=2, max_length=6, after=earlier)
    assert found == again and found[0].log_probs != lm.continuations("w4", max_length=6)[0].log_probs
    for one in (*found, *searched):
        line = lm.score([*earlier, one.text], context="document")[-1]
        assert one.log_probs == pytest.approx(line.log_probs[1 : 1 + len(one.tokens)], rel=TOLERANCE)


def test_end_marks_are_words_like_others_where_the_length_stops():
    model = build_tiny_lm("tied", seed=3).double()
    model.decoder.output.projection.bias.data[2] += 3
    lm = lm_of(model)
    (found,) = lm.continuations("w1", max_length=30, stop="length")
    assert len(found.tokens) == 30 and 2 < found.tokens.count(END) == found.text.count("\n")
    assert found.log_probs == pytest.approx(scores_of(lm, "w1", found), rel=TOLERANCE)
    assert all(END not in one.tokens[:-1] for one in lm.continuations("w1", num=20))


@pytest.mark.parametrize("prefix", ["", "w1"])
def test_a_model_without_finite_probabilities_is_refused(prefix):
    model = build_tiny_lm("tied")
    model.decoder.output.projection.bias.data[7] = torch.inf
    for beam in (None, 5):
        with pytest.raises(ValueError, match="diverged"):
            lm_of(model).continuations(prefix, beam=beam)


def test_symbols_are_never_written_and_unknown_words_only_if_allowed():
    model = build_tiny_lm("tied").double()
    model.decoder.output.projection.bias.data[[0, 1, 3]] += 5
    tokens = {unknown: set() for unknown in ("allowed", "excluded")}
    for unknown, found in tokens.items():
        for options in ({"num": 20}, {"beam": 4, "num": 4}):
            for one in lm_of(model).continuations(unknown=unknown, max_length=20, **options):
                found.update(one.tokens)
    assert "<unk>" in tokens["allowed"] and not {"<s>", "<pad>"} & tokens["allowed"]
    assert not {"<s>", "<pad>", "<unk>"} & tokens["excluded"]


def test_a_wide_beam_finds_the_best_of_all_texts():
    vocab_size, length, words = 7, 3, [3, 4, 5, 6]
    model = build_tiny_lm("mos", vocab_size=vocab_size, seed=4).double()
    lm = lm_of(model)
    texts = [[*text, 2] for n in range(length) for text in itertools.product(words, repeat=n)]
    texts += [list(text) for text in itertools.product(words, repeat=length)]
    prefix = torch.tensor([4])
    scored = score_sequences([model], [torch.cat([prefix, torch.tensor(text)]) for text in texts])
    means = [-float(one[1:].mean()) for one in scored]
    order = sorted(range(len(texts)), key=means.__getitem__, reverse=True)
    found = lm.continuations("w0", beam=len(texts), num=5, max_length=length)
    assert [one.tokens for one in found] == [[lm.dictionary[k] for k in texts[i]] for i in order[:5]]
    assert [one.total / len(one.tokens) for one in found] == pytest.approx([means[i] for i in order[:5]])


def test_a_beam_of_one_takes_the_most_probable_word_as_the_coldest_sampling_does(lm):
    for prefix in ("", "w1", "w7 w3"):
        (found,), (cold,) = (lm.continuations(prefix, max_length=12, **one) for one in ({"beam": 1}, {"top_k": 1}))
        assert found.tokens == cold.tokens


FOR_SAMPLING = "--top-k, --top-p, --temperature and --seed are for sampling: leave them or --beam out"


@pytest.mark.parametrize(
    "options, message",
    [
        ({"beam": 1, "num": 2}, "--num 2 of a beam of 1: give a --beam of at least 2"),
        ({"beam": 0}, "--beam 0: give at least 1"),
        ({"beam": 2, "top_p": 0.9}, FOR_SAMPLING),
        ({"beam": 2, "seed": 1}, FOR_SAMPLING),
        ({"num": 0}, "--num 0: give at least 1"),
        ({"seed": -1}, "--seed -1: give at least 0"),
        ({"max_length": 0}, "--max-length 0: give at least 1"),
        ({"stop": "never"}, "--stop never: choose one of end, length"),
        ({"unknown": "rare"}, "--unknown rare: choose one of allowed, excluded"),
        ({"temperature": 0}, "temperature 0: give a value above 0"),
        ({"top_k": 0}, "top-k 0: give at least 1"),
        ({"top_p": 0.0}, "top-p 0.0: give a share above 0, at most 1"),
        ({"top_p": 1.1}, "top-p 1.1"),
    ],
)
def test_values_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        GenerationOptions(**options)


PROBS = [0.1, 0.4, 0.05, 0.3, 0.15]


def shares(sampling, probs=PROBS, num_draws=20_000):
    """How often each word is chosen by evenly spread draws."""
    draws = (torch.arange(num_draws, dtype=torch.float64) + 0.5) / num_draws
    chosen = sampling.choose(torch.tensor(probs).double().log().expand(num_draws, -1), draws)
    return (torch.bincount(chosen, minlength=len(probs)) / num_draws).tolist()


def kept(*words):
    return [prob * (word in words) for word, prob in enumerate(PROBS)]


@pytest.mark.parametrize(
    "options, probs, expected",
    [
        ({}, PROBS, PROBS),
        ({}, [0.1, 0.4, 0.0, 0.3, 0.0], [0.1, 0.4, 0.0, 0.3, 0.0]),
        ({"temperature": 0.5}, PROBS, [prob**2 for prob in PROBS]),
        ({"temperature": 2.0}, PROBS, [prob**0.5 for prob in PROBS]),
        ({"temperature": 5e-324}, PROBS, kept(1)),
        ({"top_k": 1}, PROBS, kept(1)),
        ({"top_k": 3}, PROBS, kept(1, 3, 4)),
        ({"top_k": 9}, PROBS, PROBS),
        ({"top_p": 0.01}, PROBS, kept(1)),
        ({"top_p": 0.39}, PROBS, kept(1)),
        ({"top_p": 0.5}, PROBS, kept(1, 3)),
        ({"top_p": 0.71}, PROBS, kept(1, 3, 4)),
        ({"top_p": 1.0}, PROBS, PROBS),
        ({"top_p": 0.5}, [0.25, 0.5, 0.25], [0, 1, 0]),  # words that sum up to the share are enough
        ({"top_k": 2, "top_p": 0.99}, PROBS, kept(1, 3)),
        ({"top_k": 4, "top_p": 0.3}, PROBS, kept(1)),
        ({"temperature": 0.1, "top_p": 0.9}, PROBS, kept(1)),  # the share is of the tempered distribution
    ],
)
def test_words_are_drawn_by_their_share_of_what_is_kept(options, probs, expected):
    assert shares(Sampling(**options), probs) == pytest.approx([x / sum(expected) for x in expected], abs=1e-3)


@pytest.mark.parametrize("sampling, first, last", [(Sampling(), 1, 2), (Sampling(top_k=4), 2, 1)])
def test_the_ends_of_the_draws_choose_words_that_have_a_probability(sampling, first, last):
    log_probs = torch.tensor([[0.0, 0.25, 0.75, 0.0]]).double().log()
    ends = torch.tensor([0.0, 1 - 2**-53]).double()
    assert sampling.choose(log_probs.expand(2, -1), ends).tolist() == [first, last]
