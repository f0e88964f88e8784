"""The command that reranks trees: its table, its files, what it refuses."""

import gzip
import json
import shutil
import zlib

import pytest
from builders import build_lm, randomise
from fairseq.data import Dictionary
from generated_corpora import write_parses
from paths import SMALL_MODELS
from printed_tables import rows_of
from typed_commands import refused, type_command

from fairseq_plugins.commands import trees
from fairseq_plugins.trees.trees import count_words, frequent_words, read_linearisation, read_tree


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


def run(here, *flags, lists="nbest.test.txt.gz", gold="gold.test.trees"):
    files = ["--lists", here / "my parses" / lists, "--gold", here / "my parses" / gold]
    type_command("trees rerank", [here / "data", "--path", *flags, *files, "--cpu"])


@pytest.fixture
def rerank(here, monkeypatch, capsys):
    """``rerank(*flags)``: what the command prints for the test split, with models of random weights."""

    def load(paths, data):
        dictionary = Dictionary.load(str(data / "dict.txt"))
        models = []
        for path in paths:
            model = build_lm("lstm_lm_awd", len(dictionary), embed_dim=8, hidden_sizes="8 8")
            models.append(randomise(model, seed=zlib.crc32(path.encode())))
            models[-1].decoder.dictionary = dictionary
        return models

    monkeypatch.setattr(trees, "load_language_models", load)

    def rerank(*flags, **files):
        run(here, *flags, **files)
        return capsys.readouterr().out

    return rerank


def test_a_model_is_loaded_from_its_checkpoint(here, capsys):
    shutil.copy(SMALL_MODELS / "data/lm/dict.txt", here / "data/dict.txt")
    path = str(SMALL_MODELS / "lstm_lm_doc.pt")
    run(here, path, "--json")
    systems = json.loads(capsys.readouterr().out)["splits"]["gold.test"]["systems"]
    assert list(systems) == ["parser", path, "oracle"] and systems[path]["num_trees"] == 5


def test_the_table_has_the_parser_each_model_all_of_them_and_the_oracle(rerank):
    lines = rerank("a.pt", "b.pt").splitlines()
    assert lines[0] == "gold.test: 5 sentences, 20 candidates, 20 different"
    assert lines[-2:] == [
        "",
        "Brackets as EVALB has them, punctuation by the parts of speech of the gold tree (--punctuation gold).",
    ]
    rows = rows_of("\n".join(lines[2:-2]))
    assert rows[0] == ["system", "recall", "precision", "F1", "exact", "sentences scored"]
    assert [row[0] for row in rows[2:]] == ["parser", "a.pt", "b.pt", "sum of 2", "oracle"]
    # brackets: S, NP, VP, NP, PP, NP in gold; the parser's first has a noun phrase more
    assert rows[2][1:] == ["100.00", "85.71", "92.31", "0.00", "5"]
    assert rows[-1][1:] == ["100.00", "100.00", "100.00", "100.00", "5"]
    assert "| mean of 2 " in rerank("a.pt", "b.pt", "--ensemble", "mean")


SEEDS = ["AWD=a.pt", "AWD=b.pt", "DOC=c.pt", "AWD=d.pt"]


def columns(path):
    """The columns of a written table, by their heads."""
    return {head: cells for head, *cells in zip(*(line.split("\t") for line in path.read_text().splitlines()))}


def test_models_of_a_name_have_their_mean_and_choose_together(rerank, here):
    figures = json.loads(rerank(*SEEDS, "--json", "--out", here / "out"))["splits"]["gold.test"]
    alone = {"AWD 1": "a.pt", "AWD 2": "b.pt", "AWD 3": "d.pt", "DOC": "c.pt"}
    assert list(figures["systems"]) == ["parser", *alone, "AWD (sum of 3)", "sum of 4", "oracle"]
    assert list(figures["means"]) == ["AWD"] and "differences" not in figures
    written = columns(here / "out/gold.test.scores.tsv")
    assert list(written)[3:] == [*alone, "AWD (sum of 3)", "sum of 4"]
    for row, path in alone.items():
        assert figures["systems"][row]["checkpoint"] == path
        rerank(path, "--out", here / path)
        assert written[row] == columns(here / path / "gold.test.scores.tsv")[path]
    scores = {head: [float(cell) for cell in written[head]] for head in list(written)[3:]}
    for together, parts in {"AWD (sum of 3)": list(alone)[:3], "sum of 4": list(alone)}.items():
        sums = [sum(values) for values in zip(*(scores[part] for part in parts))]
        assert scores[together] == pytest.approx(sums, abs=5e-6)
    best = [min(range(4), key=lambda i, start=start: scores["sum of 4"][start + i]) for start in range(0, 20, 4)]
    with gzip.open(here / "my parses/nbest.test.txt.gz", "rt") as file:
        proposed = [line.rstrip() for line in file if line.startswith("(")]
    chosen = (here / "out/gold.test.reranked.trees").read_text().splitlines()
    assert chosen == [proposed[4 * number + place] for number, place in enumerate(best)]
    # the written trees, as lists of one candidate each, have the scores of the ensemble
    pairs = "".join(f"1\t{number}\n0\n{tree}\n\n" for number, tree in enumerate(chosen))
    (here / "my parses/chosen.txt").write_text(pairs)
    again = json.loads(rerank("a.pt", "--json", lists="chosen.txt"))["splits"]["gold.test"]["systems"]["parser"]
    assert again == figures["systems"]["sum of 4"]


@pytest.mark.parametrize("baseline", ["parser", "AWD", "AWD (sum of 3)", "sum of 4"])
def test_ways_to_choose_are_tested_against_a_baseline(baseline, rerank):
    split = json.loads(rerank(*SEEDS, "--baseline", baseline, "--json"))["splits"]["gold.test"]
    value_of = {name: figures["f1"] for name, figures in split["systems"].items()}
    value_of["AWD"] = split["means"]["AWD"]["f1"]["mean"]
    ways = ["parser", "AWD", "DOC", "AWD (sum of 3)", "sum of 4"]
    found = {one["name"]: one["differences"]["f1"]["value"] for one in split["differences"]}
    assert list(found) == [name for name in ways if name != baseline] and split["baseline"] == baseline
    assert found == pytest.approx({name: value_of[name] - value_of[baseline] for name in found})
    printed = rerank(*SEEDS, "--baseline", baseline)
    assert f"| minus {baseline} " in printed and "oracle" not in printed.partition("| minus")[2]


def test_splits_are_scored_one_after_the_other(rerank, here):
    parses = here / "my parses"
    (parses / "valid.trees").write_text("".join((parses / "gold.test.trees").read_text().splitlines(True)[:2]))
    with gzip.open(parses / "nbest.test.txt.gz", "rt") as file:
        (parses / "valid.nbest").write_text("".join(file.read().partition("4\ttest.2")[0]))
    both = ["--lists", parses / "valid.nbest", "--gold", parses / "valid.trees"]
    splits = json.loads(rerank("a.pt", "--json", "--out", here / "out", *both))["splits"]
    assert {name: split["sentences"] for name, split in splits.items()} == {"valid": 2, "gold.test": 5}
    assert splits["valid"]["systems"]["a.pt"]["num_trees"] == 2
    names = {f"{name}.{kind}" for name in splits for kind in ("reranked.trees", "scores.tsv")}
    assert {path.name for path in (here / "out").iterdir()} == {*names, "table.md", "table.json"}
    assert json.loads((here / "out/table.json").read_text())["splits"] == splits
    printed = rerank("a.pt", *both)
    assert (here / "out/table.md").read_text().startswith(printed)
    assert printed.index("valid: 2 sentences") < printed.index("gold.test: 5 sentences")
    assert printed.count("Brackets as EVALB") == 1


def test_the_parsers_scores_are_written_in_full(rerank, here):
    tree = (here / "my parses/gold.test.trees").read_text().splitlines()[0]
    (here / "my parses/table").write_text(f"0\t-123.456789\t{tree}\n")
    rerank("a.pt", "--out", here / "out", lists="table")
    row = (here / "out/gold.test.scores.tsv").read_text().splitlines()[1]
    assert row.split("\t")[2] == "-123.456789"


LISTS, GOLD = "{here}/my parses/nbest.test.txt.gz", "{here}/my parses/gold.test.trees"


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--gold", GOLD, "{here}/x"], "x does not exist"),
        (["--gold", GOLD, GOLD], "--lists names 1 files and --gold 2: give as many, in the same order"),
        (["--lists", LISTS, LISTS, "--gold", GOLD, GOLD], "two files have the same name"),
        (["--gold", "{here}/my parses/gold.train.trees"], "5 lists for 40 gold trees"),
        (["--path", "a.pt", "b.pt", "a.pt"], "--path: a.pt and a.pt hold the same model: give each model once"),
        (["--path", "AWD=a.pt", "b.pt"], "b.pt: give it as NAME=PATH as the others, without : or / in NAME"),
        (["--path", "sentence=a.pt"], "--path sentence: another row or column of the results has this name"),
        (["--path", "AWD=a.pt", "DOC=a.pt"], "--path: a.pt and a.pt hold the same model: give each model once"),
        (["--path", "A=a.pt", "A=b.pt", "A 2=c.pt"], "--path A: another row or column of the results has this name"),
        (["--baseline", "b.pt"], "--baseline b.pt: choose one of parser, a.pt"),
        (["--baseline", "oracle"], "--baseline oracle: choose one of parser, a.pt"),
        (["--path", "a.pt", "sum of 2"], "--path sum of 2: another row or column of the results has this name"),
        (["--lists", "{here}"], "is a folder: give a file of a parser's candidates"),
        (["--max-tokens", "0"], "argument --max-tokens: 0: give a whole number of at least 1"),
        (
            ["--lists", "{here}/gold.test.scores.tsv", "--out", "{here}"],
            "--out {here}/gold.test.scores.tsv is read by this command: give another name",
        ),
    ],
)
def test_what_is_refused(flags, message, here, rerank, capsys):
    parses = here / "my parses"
    whole = {"--path": ["a.pt"], "--lists": [parses / "nbest.test.txt.gz"], "--gold": [parses / "gold.test.trees"]}
    given = [word for name, values in whole.items() if name not in flags for word in (name, *values)]
    (here / "gold.test.scores.tsv").touch()
    told = refused("trees rerank", [here / "data", *given, *(flag.format(here=here) for flag in flags)], capsys)
    assert message.format(here=here) in told
