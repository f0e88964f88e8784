"""The commands by which recipes say where their corpora come from."""

import re
import shlex

import pytest
from preparation.corpora import CORPORA
from preparation.options import parse_options
from preparation.parallel_corpus import ParallelCorpus

from fairseq_plugins.recipes import RECIPES

COMMANDS = sorted({recipe.corpus for recipe in RECIPES.values()} - {RECIPES["presets"].corpus})


@pytest.mark.parametrize("command", COMMANDS)
def test_the_script_takes_its_arguments(command: str) -> None:
    bash, script, *arguments = shlex.split(command)
    corpus = script.removeprefix("data-prep/").removesuffix("/prepare.sh")
    assert bash == "bash" and parse_options(CORPORA[corpus], arguments).check
    assert corpus not in ("gigaword", "wsj") or "--from" in arguments  # which are not to be downloaded


PAIRS = sorted(name for name, corpus in CORPORA.items() if isinstance(corpus, ParallelCorpus))


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("dictionaries", ["two", "one"])
def test_the_next_command_names_a_recipe_of_such_pairs(name: str, dictionaries: str) -> None:
    corpus = CORPORA[name]
    joined = ["--joined-dictionary"] if dictionaries == "one" else []
    places = ["--from", "."] if name == "gigaword" else []
    pair = corpus.pairs[:1] if len(corpus.pairs) > 1 else []
    options = parse_options(corpus, [*pair, *joined, *places])
    told = corpus.report(options)
    beside = "with bpe.codes and the references in raw"
    assert told.startswith(f"The binarised corpus is in {options.dest}, {beside}. Next:")
    recipe = re.search(r"cli\.train (\w+) doc", told)[1]
    flags = RECIPES[recipe].settings("doc")
    shares_all = flags.get("share_embeddings") == "all"
    assert shares_all == (dictionaries == "one")
    assert RECIPES[recipe].compared_by == ("rouge" if "title" in corpus.languages else "bleu")
