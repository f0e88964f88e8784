"""The commands by which recipes say where their corpora come from."""

import shlex

import pytest
from preparation.corpora import CORPORA
from preparation.options import parse_options

from fairseq_plugins.recipes import RECIPES

COMMANDS = sorted({recipe.corpus for recipe in RECIPES.values()} - {RECIPES["presets"].corpus})


@pytest.mark.parametrize("command", COMMANDS)
def test_the_script_takes_its_arguments(command: str) -> None:
    bash, script, *arguments = shlex.split(command)
    corpus = script.removeprefix("data-prep/").removesuffix("/prepare.sh")
    assert bash == "bash" and parse_options(CORPORA[corpus], arguments).check
    assert corpus not in ("gigaword", "wsj") or "--from" in arguments  # which are not to be downloaded
