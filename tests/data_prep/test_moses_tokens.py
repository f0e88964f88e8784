"""Tokens in lower case: made of the line's own case, but of AG News, whose results are of the former order."""

import pytest
from preparation import tokens
from preparation.corpora import CORPORA
from preparation.parallel_corpus import ParallelCorpus
from preparation_runs import options_of

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
