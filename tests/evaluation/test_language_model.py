"""Scores of lines of text against those of streams, whatever the batches, buffers and threads."""

import itertools
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from builders import build_tiny_gated_lm, build_tiny_lm

from fairseq_plugins.evaluation.language_model import TrainedLanguageModel
from fairseq_plugins.evaluation.raw_text import BUFFERED_CHARACTERS, Blanks, SideText
from fairseq_plugins.evaluation.scoring import ScoredStream, evaluate_perplexity

LINES = ["w1 w2 w3", "", "w4", "w18 w0 w3 w5 w5 w5 w7", "w2 blorp", "", "w9 w9"]
TOLERANCE = 1e-11


def lm_of(*models, **options):
    return TrainedLanguageModel(models, SideText(Blanks()), **options)


@pytest.fixture
def lm():
    return lm_of(build_tiny_lm("doc", seed=1).double())


def nll_of_stream(lm, lines):
    """The sum in nats over a stream of one end mark and the lines, each with its own."""
    numbered = [lm.dictionary.encode_line(line, add_if_not_exist=False).long() for line in lines]
    found = evaluate_perplexity(lm.models, torch.cat([torch.tensor([2]), *numbered]), window=5)
    return found.nll * found.num_tokens


@pytest.mark.parametrize("kind", ["tied", "drill", "doc", "gated", "ensemble"])
def test_a_line_is_the_sum_of_its_tokens_and_the_stream_of_an_end_mark_and_the_line(kind):
    if kind == "gated":
        models = [build_tiny_gated_lm("tied", "mos")]
    else:
        names = ["tied", "mos"] if kind == "ensemble" else [kind]
        models = [build_tiny_lm(name, seed=seed) for seed, name in enumerate(names)]
    lm = lm_of(*(model.double() for model in models))
    for line, text in zip(lm.score(LINES), LINES, strict=True):
        assert line.text == text and line.tokens == [*text.split(), "</s>"]
        assert line.total == pytest.approx(sum(line.log_probs), rel=TOLERANCE)
        assert line.total == pytest.approx(-nll_of_stream(lm, [text]), rel=TOLERANCE)


def test_surprisal_is_in_nats_and_bits_and_unknown_words_are_marked(lm):
    (line,) = lm.score(["w2 blorp <unk>"])
    assert line.unknown == [False, True, True, False]
    assert line.nats == [-log_prob for log_prob in line.log_probs]
    assert line.bits == pytest.approx([nats / math.log(2) for nats in line.nats])


@pytest.mark.parametrize("max_tokens, buffer", [(1, 1), (7, 2), (4096, 3), (20, 4096)])
def test_a_line_does_not_depend_on_its_neighbours(max_tokens, buffer, lm):
    alone = [lm.score([line])[0].log_probs for line in LINES]
    lm.max_tokens = max_tokens
    found = list(lm.score_stream(reversed(LINES), buffer=buffer))
    assert [line.text for line in found] == LINES[::-1]
    for line, expected in zip(reversed(found), alone):
        assert line.log_probs == pytest.approx(expected, rel=TOLERANCE)


@pytest.mark.parametrize("buffer", [1, 3, 100])
@pytest.mark.parametrize("context, texts", [("document", [(0, 7)]), ("paragraph", [(0, 2), (2, 6), (6, 7)])])
def test_a_document_is_a_stream_and_so_is_a_paragraph_up_to_its_blank_line(context, texts, buffer, lm):
    found = list(lm.score_stream(LINES, context=context, buffer=buffer))
    assert [line.text for line in found] == LINES
    for first, last in texts:
        for end in range(first + 1, last + 1):
            total = sum(line.total for line in found[first:end])
            assert -total == pytest.approx(nll_of_stream(lm, LINES[first:end]), rel=TOLERANCE)


def test_nothing_is_kept_of_a_document_not_read_to_its_end(lm):
    lines = lm.score_stream(LINES, context="document", buffer=1)
    first = [next(lines).total, next(lines).total]
    lines.close()
    assert not lm.models[0].decoder.carried_state._streams
    assert [line.total for line in lm.score(LINES[:2], context="document")] == pytest.approx(first)


def test_a_stream_that_was_left_within_a_line_restarts_after_an_end_mark(lm):
    tokens = torch.tensor([5, 6, 7])
    with ScoredStream(lm.models) as stream:
        first = stream.score(tokens)
        stream.restart()
        assert torch.equal(stream.score(tokens), first)


def test_odd_lines_are_scored_as_they_came(lm):
    lines = ["w1 \0 w2", "\0", "blorp " * 40, " \t ", "w1\u2028w2", "x" * 1_000_000, "\x85"]
    found = lm.score(lines)
    assert [line.text for line in found] == lines
    assert [len(line.tokens) for line in found] == [3, 1, 41, 1, 3, 2, 1]  # a NUL is a blank, as in data-prep
    assert [sum(line.unknown) for line in found] == [0, 0, 40, 0, 0, 1, 0]
    assert all(math.isfinite(line.total) for line in found)


@pytest.mark.parametrize("context", ["line", "document"])
def test_no_more_lines_are_held_than_the_buffer_has(context, lm):
    num_read = 0

    def lines():
        nonlocal num_read
        for num_read in range(1, 1201):  # noqa: B007
            yield LINES[num_read % len(LINES)]

    for num_given, _ in enumerate(lm.score_stream(lines(), context=context, buffer=50), start=1):
        assert num_read - num_given < 50
    assert num_given == 1200


def test_a_buffer_of_long_lines_is_full_before_its_number_of_lines(lm):
    num_read = itertools.count()
    line = "x" * (BUFFERED_CHARACTERS // 4 + 1)
    lines = lm.score_stream((line for _ in zip(range(9), num_read)), buffer=100)
    next(lines)
    assert next(num_read) == 4


@pytest.mark.parametrize("name, context", [("tied", "document"), ("drill", "line"), ("doc", "document")])
def test_threads_find_the_same_scores(name, context):
    lm = lm_of(build_tiny_lm(name, seed=1))
    texts = [LINES[start:] + LINES[:start] for start in range(len(LINES))] * 3
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda lines: lm.score(lines, context=context), texts))
    assert together == [lm.score(lines, context=context) for lines in texts]


def test_a_context_that_does_not_exist_is_refused_at_once(lm):
    with pytest.raises(ValueError, match="context page: choose one of line, paragraph, document"):
        lm.score_stream(LINES, context="page")
