"""The command that reranks trees: its table, its files, what it refuses."""

import gzip
import json

import pytest
from builders import build_lm, randomise
from fairseq.data import Dictionary
from generated_corpora.parses import write_parses

from fairseq_plugins.cli import rerank_trees
from fairseq_plugins.cli.rerank_trees import RerankTrees
from fairseq_plugins.trees.linearisation import count_words, frequent_words, read_linearisation
from fairseq_plugins.trees.tree import read_tree


@pytest.fixture
def here(tmp_path):
    """Parses, and a folder as data-prep writes it, without binaries."""
    write_parses(tmp_path / "my parses")
    trees = list(map(read_tree, (tmp_path / "my parses/gold.train.trees").read_text().splitlines()))
    (tmp_path / "data/trees").mkdir(parents=True)
    kept = frequent_words(count_words(trees), min_count=10)
    (tmp_path / "data/trees/kept_words.txt").write_text("".join(f"{word}\n" for word in kept))
    dictionary, linearisation = Dictionary(), read_linearisation(tmp_path / "data")
    for tree in trees:
        for symbol in linearisation.symbols(tree):
            dictionary.add_symbol(symbol)
    dictionary.finalize(padding_factor=1)
    dictionary.save(str(tmp_path / "data/dict.txt"))
    return tmp_path


@pytest.fixture
def rerank(here, monkeypatch, capsys):
    """``rerank(*flags)``: what the command prints for the test split, with models of random weights."""

    def load(paths, data):
        dictionary = Dictionary.load(str(data / "dict.txt"))
        models = []
        for seed, _ in enumerate(paths):
            models.append(
                randomise(build_lm("lstm_lm_awd", len(dictionary), embed_dim=8, hidden_sizes="8 8"), seed=seed)
            )
            models[-1].decoder.dictionary = dictionary
        return models, dictionary

    monkeypatch.setattr(rerank_trees, "load_language_models", load)

    def run(*flags, lists="nbest.test.txt.gz", gold="gold.test.trees"):
        files = ["--lists", here / "my parses" / lists, "--gold", here / "my parses" / gold]
        RerankTrees().main([here / "data", "--path", *flags, *files, "--cpu"])
        return capsys.readouterr().out

    return run


def test_the_table_has_the_parser_each_model_all_of_them_and_the_oracle(rerank):
    lines = rerank("a.pt", "b.pt").splitlines()
    assert lines[0] == "gold.test: 5 sentences, 20 candidates, 20 different"
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert rows[0] == ["system", "recall", "precision", "F1", "exact", "sentences scored"]
    assert [row[0] for row in rows[2:]] == ["parser", "a.pt", "b.pt", "sum of 2", "oracle"]
    # brackets: S, NP, VP, NP, PP, NP in gold; the parser's first has a noun phrase more
    assert rows[2][1:] == ["100.00", "85.71", "92.31", "0.00", "5"]
    assert rows[-1][1:] == ["100.00", "100.00", "100.00", "100.00", "5"]


def test_figures_for_machines(rerank):
    figures = json.loads(rerank("a.pt", "b.pt", "--ensemble", "mean", "--json"))
    split = figures["splits"]["gold.test"]
    assert (split["sentences"], split["candidates"], split["different"]) == (5, 20, 20) and figures["command"]
    assert list(split["systems"]) == ["parser", "a.pt", "b.pt", "mean of 2", "oracle"]
    parser = split["systems"]["parser"]
    assert (parser["matched"], parser["gold"], parser["test"], parser["skipped"]) == (30, 30, 35, [])
    assert parser["f1"] == pytest.approx(60 / 65) and parser["exact"] == 0
    assert list(json.loads(rerank("a.pt", "--json"))["splits"]["gold.test"]["systems"]) == ["parser", "a.pt", "oracle"]


def test_chosen_trees_and_scores_are_written(rerank, here):
    figures = json.loads(rerank("a.pt", "b.pt", "--json", "--out", here / "a folder"))
    folder = here / "a folder"
    assert {path.name for path in folder.iterdir()} == {"gold.test.reranked.trees", "gold.test.scores.tsv"}
    head, *rows = [line.split("\t") for line in (folder / "gold.test.scores.tsv").read_text().splitlines()]
    assert head == ["sentence", "candidate", "parser", "a.pt", "b.pt", "together"] and len(rows) == 20
    with gzip.open(here / "my parses/nbest.test.txt.gz", "rt") as file:
        proposed = [line.rstrip() for line in file if line.startswith("(")]
    chosen = (folder / "gold.test.reranked.trees").read_text().splitlines()
    for number, tree in enumerate(chosen):
        of_sentence = [row for row in rows if row[0] == f"test.{number}"]
        assert [row[1:3] for row in of_sentence] == [[str(place), str(-19 - place)] for place in range(1, 5)]
        assert all(float(a) + float(b) == pytest.approx(float(both), abs=2e-6) for *_, a, b, both in of_sentence)
        best = min(range(4), key=lambda place: float(of_sentence[place][-1]))
        assert tree == proposed[4 * number + best]
    # the written trees, as lists of one candidate each, have the scores of the ensemble
    pairs = "".join(f"1\t{number}\n0\n{tree}\n\n" for number, tree in enumerate(chosen))
    (here / "my parses/chosen.txt").write_text(pairs)
    again = json.loads(rerank("a.pt", "--json", lists="chosen.txt"))["splits"]["gold.test"]["systems"]["parser"]
    assert again == figures["splits"]["gold.test"]["systems"]["sum of 2"]


def test_sentences_that_are_left_out_are_named(rerank, here):
    lines = (here / "my parses/gold.test.trees").read_text().splitlines()
    lines[1] = lines[1].replace("The", "A")
    (here / "my parses/table").write_text("".join(f"{number}\t0\t{tree}\n" for number, tree in enumerate(lines[:3])))
    printed = rerank("a.pt", lists="table")
    assert (
        "oracle leaves out 3 (no candidate, other words than the gold tree, or punctuation alone): 1, 3, 4" in printed
    )


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--gold", "{here}/my parses/gold.test.trees", "{here}/x"], "x does not exist"),
        (
            ["--gold", *["{here}/my parses/gold.test.trees"] * 2],
            "--lists names 1 files and --gold 2: give as many, in the same order",
        ),
        (
            [
                "--lists",
                *["{here}/my parses/nbest.test.txt.gz"] * 2,
                "--gold",
                *["{here}/my parses/gold.test.trees"] * 2,
            ],
            "two files have the same name",
        ),
        (["--gold", "{here}/my parses/gold.train.trees"], "5 lists for 40 gold trees"),
        (["--max-tokens", "0"], "--max-tokens 0: give at least 1"),
    ],
)
def test_what_is_refused(flags, message, here, rerank, capsys):
    parses = here / "my parses"
    given = ["--lists", parses / "nbest.test.txt.gz", "--gold", parses / "gold.test.trees"]
    with pytest.raises(SystemExit) as error:
        RerankTrees().main([here / "data", "--path", "a.pt", *given, *(flag.format(here=here) for flag in flags)])
    told = capsys.readouterr().err
    assert error.value.code == 2 and message in told and told.count("\n") == 1


def test_data_without_kept_words_is_refused(here, rerank, capsys):
    (here / "data/trees/kept_words.txt").unlink()
    with pytest.raises(SystemExit) as error:
        rerank("a.pt")
    assert error.value.code == 2 and "data-prep/wsj/prepare.sh" in capsys.readouterr().err
