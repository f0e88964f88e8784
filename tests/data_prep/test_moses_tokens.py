"""Tokens in lower case: made of the line's own case, but of AG News, whose results are of the former order.

Lines that Moses alone tears come back as they were, and both ways are those of the commands.
"""

from pathlib import Path

import pytest
from preparation import tokens
from preparation.corpora import CORPORA
from preparation.parallel_corpus import ParallelCorpus
from preparation_runs import options_of

from fairseq_plugins.evaluation.text.raw_text import Moses, SideText

CASES = Path(__file__).resolve().parents[1] / "cases"

PAIRS = {name: corpus for name, corpus in CORPORA.items() if isinstance(corpus, ParallelCorpus)}


@pytest.mark.parametrize(
    "line, expected",
    [
        ("I see. And", "i see . and"),
        ("I see. And then ... No. 5", "i see . and then ... no. 5"),
        ('Mr. X said: "AT&T"', "mr. x said : &quot; at &amp; t &quot;"),
    ],
)
def test_case_is_lowered_after_the_tokens_were_found(line: str, expected: str) -> None:
    assert tokens.moses("en", lowercase=True)(line) == expected
    assert tokens.moses("en", lowercase=False)(line).lower() == expected


@pytest.mark.parametrize("name", PAIRS)
def test_recipe_tells_the_order(name: str) -> None:
    corpus = PAIRS[name]
    side = "title" if corpus.pairs == ["article-title"] else "en"
    options = options_of(corpus, corpus.pairs[0], "--lowercase")
    tokenise = corpus.tokenizer_of(options)(side, options.lowercase)
    found = "former" if "lowercase" in corpus.recipe(options).split(", ") else "usual"
    assert found == ("former" if name == "agnews" else "usual")
    assert ("lowercase tokens" in corpus.recipe(options).split(", ")) == (found == "usual")
    if name == "agnews":
        assert tokenise("I see. And No. 5") == "i see. and no . 5"
    elif name == "gigaword":
        assert tokenise("I see . And") == "i see . and"
    else:
        assert tokenise("I see. And No. 5") == "i see . and no. 5"


@pytest.mark.parametrize("name", PAIRS)
def test_case_that_is_kept_has_one_order(name: str) -> None:
    corpus = PAIRS[name]
    options = options_of(corpus, corpus.pairs[0], "--no-lowercase")
    assert "lowercase" not in corpus.recipe(options)
    side = "title" if corpus.pairs == ["article-title"] else "en"
    assert corpus.tokenizer_of(options)(side, options.lowercase)("I see .") == "I see ."


TORN = [(path.suffix[1:], line) for path in sorted(CASES.glob("[jn]*.*")) for line in path.read_text().splitlines()]
TORN += [("en", line) for line in (CASES / "emoji.en").read_text().splitlines()]
TORN += [
    ("he", "\u200f\u05e9\u05dc\u05d5\u05dd!\u200f \u2067x\u2069, y"),
    ("ar", "\u0643\u064a\u0641\u061f \u0647\u064e\u0644\u060c \u0600\u0661\u0662"),
    ("hi", "\u0928\u092e\u0938\u094d\u0924\u0947\u0964 \u0915\u094d\u200d\u0937"),
    ("my", "\u1019\u103c\u1014\u103a\u1019\u102c\u104b"),
    ("en", "A flag \U0001f1e9\U0001f1ea, a thumb \U0001f44d\U0001f3fd and 1\ufe0f\u20e3: x\u0332y's z\u0332."),
    ("en", "\u00ad \u200d a \u0301 \u0301b"),
]


@pytest.mark.parametrize("language, line", TORN)
def test_characters_stay_where_they_were(language: str, line: str) -> None:
    commands = SideText(Moses(language))
    words = commands.split(line)
    composed = commands.tokenizer.join(words)
    assert composed == " ".join(line.replace("a\u0308", "ä").replace("o\u0308", "ö").replace("u\u0308", "ü").split())
    assert tokens.moses(language, lowercase=False)(composed).split() == words
