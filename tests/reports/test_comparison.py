"""The table of several runs; integration tests read it from real trainings."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import sacrebleu
from printed_tables import rows_of

from fairseq_plugins.evaluation.decoding import RUN_FILE
from fairseq_plugins.files import file_digest
from fairseq_plugins.metrics.rouge import RougeSettings
from fairseq_plugins.reports import comparison
from fairseq_plugins.reports.comparison import (
    BleuMetric,
    PerplexityMetric,
    RougeMetric,
    as_markdown,
    compare_runs,
    differences_as_markdown,
    seed_differences,
    text_differences,
    text_metric,
)

LINES = ["ein kleines Haus steht hier.", "das Haus ist sehr alt, sagt er.", "hier steht heute kein Haus."]


def decoded(folder, name="checkpoint_best.pt", text="oil prices rise"):
    """A run in a folder whose split test is decoded, without a checkpoint, and a raw reference of one line."""
    (folder / "test").mkdir(parents=True)
    (folder / "test/generate.txt").write_text(f"T-0\t{text}\nH-0\t-1\t{text}\n", encoding="utf-8")
    (folder / "reference").write_text("oil prices rise\n", encoding="utf-8")
    return SimpleNamespace(save_dir=folder, checkpoint=folder / name)


def write_record(run, models, flags=()):
    """The record of a decoding by models, whose digests are given by path."""
    record = dict(command="", models=models, data={}, parts={}, flags=list(flags), max_tokens=4)
    record.update(languages=["en", "de"], version="1")
    (run.save_dir / "test" / RUN_FILE).write_text(json.dumps(record))


def run(name, seed, **figures):
    sizes = dict(parameters=1234, learning_parameters=1234, epochs=6, highest_valid_scores={})
    cost = dict(words_per_second=1500.4 * seed, hours=seed / 8)
    return {**sizes, **cost, **dict(name=name, seed=seed, lowest_valid_perplexity=20.0 + seed), **figures}


def named_rows_of(table):
    title, _, *rows = rows_of(table)
    return [dict(zip(title, row)) for row in rows]


def test_runs_of_one_name_have_a_mean_and_a_deviation():
    metric = PerplexityMetric(None)
    runs = [
        *(run("A", seed, valid_perplexity=19.0 + seed, test_perplexity=10.0 * seed) for seed in (1, 2, 6)),
        run("B", 3, valid_perplexity=8.0, test_perplexity=7.0),
    ]
    rows = named_rows_of(as_markdown(runs, metric))
    assert [row["model"] for row in rows] == ["A", "A", "A", "A, mean", "A, standard deviation", "B"]
    assert rows[0] == {
        **{"model": "A", "parameters": "1,234", "seed": "1", "epochs": "6", "valid perplexity": "20.00"},
        **{"test perplexity": "10.00", "words per second": "1,500", "hours": "0.12"},
    }
    assert rows[3]["test perplexity"] == "30.00" and rows[3]["valid perplexity"] == "22.00"
    assert rows[4]["test perplexity"] == f"{10 * 7**0.5:.2f}" and rows[4]["valid perplexity"] == f"{7**0.5:.2f}"
    for row in rows[3:5]:
        assert row["seed"] == row["parameters"] == row["words per second"] == row["hours"] == ""


def test_parameters_that_learn_stand_where_not_all_do():
    scores = dict(valid_perplexity=19.0, test_perplexity=10.0)
    runs = [run("A", 1, **scores), run("A with a gate", 1, learning_parameters=30, **scores)]
    rows = named_rows_of(as_markdown(runs, PerplexityMetric(None)))
    assert [(row["parameters"], row["that learn"]) for row in rows] == [("1,234", ""), ("1,234", "30")]


def test_the_best_scores_of_validation_stand_in_the_table():
    scored = [run("A", seed, highest_valid_scores={"bleu": 10.0 * seed}, words=3.0, scores=[]) for seed in (1, 2)]
    rows = named_rows_of(
        as_markdown([*scored, run("B", 1, highest_valid_scores={}, words=3.0, scores=[])], RougeMetric())
    )
    assert [row["highest valid BLEU"] for row in rows] == ["10.00", "20.00", "15.00", "7.07", ""]
    assert list(rows[0])[4:6] == ["lowest valid perplexity", "highest valid BLEU"]


def test_a_text_of_another_origin_stands_beside_runs(tmp_path):
    for name in ("reference.de", "text"):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in LINES))
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in [*LINES[:2], "nein, hier nicht."]))
    metric = BleuMetric(tmp_path / "reference.de", language="de")
    figures = {"name": "another", **metric.scored(tmp_path / "text", "text")}
    bleu, chrf = figures["scores"]
    hypotheses = [*LINES[:2], "nein, hier nicht."]
    assert bleu["value"] == pytest.approx(sacrebleu.corpus_bleu(hypotheses, [LINES]).score)
    assert chrf["value"] == pytest.approx(sacrebleu.corpus_chrf(hypotheses, [LINES]).score)
    tokenised = {"value": 50.0, "interval": 1.0, "signature": "none"}
    trained = run("A", 1, scores=[bleu, chrf, tokenised])
    ours, theirs = named_rows_of(as_markdown([trained, figures], metric))
    assert theirs["parameters"] == theirs["seed"] == theirs["tokenised BLEU"] == ""
    assert ours["tokenised BLEU"] == "50.00 +- 1.00"
    assert ours["BLEU"] == theirs["BLEU"] == f"{bleu['value']:.2f} +- {bleu['interval']:.2f}"
    assert bleu["signature"] in metric.note([trained, figures])


def test_headlines_have_a_length_and_three_scores(tmp_path):
    (tmp_path / "reference").write_text("oil prices rise\npolice kill gunman\n")
    (tmp_path / "text").write_text("oil prices rise\ngunman\n")
    metric = RougeMetric(tmp_path / "reference")
    figures = {"name": "first words", **metric.scored(tmp_path / "text", "text")}
    (row,) = named_rows_of(as_markdown([figures], metric))
    assert row["words"] == "2.0" and row["ROUGE-1 F1"].startswith("75.00 +- ")
    assert list(row) == ["model", "words", "ROUGE-1 F1", "ROUGE-2 F1", "ROUGE-L F1"]
    assert "rouge-score-" in metric.note([figures])


def test_the_language_of_translations_is_that_of_the_data_whatever_the_references_name(tmp_path):
    (tmp_path / "references.txt").write_text("l'ami est là.\n", encoding="utf-8")
    run = decoded(tmp_path, text="l&apos; ami est là .")
    figures = text_metric("bleu", tmp_path / "references.txt", data=tmp_path, split="test", language="fr").measure(run)
    assert figures["scores"][0]["value"] == pytest.approx(100)


def test_what_another_checkpoint_wrote_is_not_scored(tmp_path):
    run = decoded(tmp_path)
    run.checkpoint.write_bytes(b"model")
    first = {"checkpoint_best.pt": file_digest(run.checkpoint)}
    write_record(run, first)
    assert RougeMetric(tmp_path / "reference").measure(run)["words"] == 3
    for other in ("an ensemble", "a later epoch"):
        write_record(run, {**first, "b.pt": "1"} if other == "an ensemble" else first)
        if other == "a later epoch":
            run.checkpoint.write_bytes(b"another model")
        for metric in (RougeMetric(tmp_path / "reference"), BleuMetric(tmp_path / "reference", language="de")):
            with pytest.raises(ValueError, match="was not decoded by .* alone, or it was before the training went on"):
                metric.measure(run)


def test_a_text_whose_checkpoint_is_gone_is_of_one_model(tmp_path):
    run = decoded(tmp_path)
    write_record(run, {"there/checkpoint_best.pt": "1"})
    assert RougeMetric(tmp_path / "reference").measure(run)["words"] == 3
    for others in (["a/checkpoint_best.pt", "b/checkpoint_best.pt"], ["there/checkpoint_last.pt"]):
        write_record(run, dict.fromkeys(others, "1"))
        with pytest.raises(ValueError, match="was not decoded by a checkpoint_best.pt alone, and .* fetch it, or what"):
            RougeMetric(tmp_path / "reference").measure(run)


@pytest.fixture
def figures_of(monkeypatch):
    """Runs are read without files; the figures of each are what this mock returns for its checkpoint."""

    def read(name, path):
        return SimpleNamespace(name=name, save_dir=path.parent, checkpoint=path, figures=figures_of(path))

    figures_of = Mock()
    monkeypatch.setattr(comparison, "read_run", read)
    return figures_of


@pytest.mark.parametrize(
    "seeds, sizes, told",
    [
        ((3, 3), (9, 9), "--path: a and b are both DOC with seed 3"),
        ((1, 2), (9, 8), "runs that are called DOC have 9 and 8 parameters, .* a name of its own"),
    ],
)
def test_runs_of_one_name_differ_in_their_seed_alone(seeds, sizes, told, figures_of):
    figures_of.side_effect = [{"seed": seed, "parameters": size} for seed, size in zip((*seeds, 3), (*sizes, 7))]
    runs = [("DOC", Path("a/a.pt")), ("DOC", Path("b/b.pt")), ("MoS", Path("c/c.pt"))]
    with pytest.raises(ValueError, match=told):
        comparison.compare_runs(runs, PerplexityMetric(None))


def test_a_run_that_lacks_its_text_is_told_before_others_are_scored(tmp_path, figures_of, monkeypatch):
    figures_of.return_value = {"seed": 1}
    monkeypatch.setattr(RougeMetric, "measure", lambda *_: pytest.fail("it was scored"))
    (tmp_path / "a/test").mkdir(parents=True)
    (tmp_path / "a/test/generate.txt").touch()
    runs = [("A", tmp_path / "a/checkpoint_best.pt"), ("B", tmp_path / "b/checkpoint_best.pt")]
    told = "b/test/generate.txt does not exist: decode test by evaluate bleu or rouge with --out .*b/test"
    with pytest.raises(ValueError, match=told):
        comparison.compare_runs(runs, RougeMetric())


@pytest.mark.parametrize(
    "flags, told",
    [
        ("--gen-subset test --beam 5 --remove-bpe=subword_nmt --cpu", None),
        ("--gen-subset test --beam 4 --remove-bpe=subword_nmt", "--beam 4 "),
        ("--gen-subset test --beam 5 --remove-bpe=subword_nmt --lenpen 0.6", "--lenpen 0.6"),
    ],
)
def test_the_table_tells_where_runs_were_decoded_otherwise(flags, told, tmp_path):
    name_of_metric = "bleu" if told is None or "beam" in told else "rouge"
    (tmp_path / "reference.de").write_text("oil prices rise\n")
    metric = text_metric(name_of_metric, tmp_path / "reference.de", data=tmp_path, split="test", language="de")
    found = []
    first = "--gen-subset test --beam 5 --remove-bpe=subword_nmt"
    for name, given in (("a", first), ("b", flags)):
        run = decoded(tmp_path / name, f"{name}.pt")
        run.checkpoint.write_bytes(name.encode())
        write_record(run, {f"{name}.pt": file_digest(run.checkpoint)}, given.split())
        found.append({"name": name, **metric.measure(run)})
    for names in ("ab", "aa"):  # two systems, or two seeds of one
        note = metric.note([{**one, "name": name} for one, name in zip(found, names)])
        assert ("Decoded with other flags: a: `" in note) == (told is not None) and (told or "") in note


def test_systems_are_tested_against_a_baseline_with_all_their_seeds(tmp_path):
    (tmp_path / "reference").write_text("oil prices rise\npolice kill gunman\nstocks fall\n" * 20)
    good, bad = ["oil prices rise", "police kill man", "stocks fall"] * 20, ["oil", "gunman", "bonds"] * 20
    written = [("A", bad), ("B", good), ("A", bad), ("words", bad)]
    found = text_differences(written, RougeMetric(tmp_path / "reference"), baseline="A")
    assert [one["name"] for one in found] == ["B", "words"]
    ours, same = (one["differences"] for one in found)
    assert list(ours) == ["ROUGE-1", "ROUGE-2", "ROUGE-L"] and ours["ROUGE-1"]["value"] > 40
    assert same["ROUGE-L"] == {"value": 0, "interval": 0, "p": 1}
    table = differences_as_markdown(found, baseline="A").splitlines()
    assert "minus A" in table[2] and table[-1].split("|")[2].strip() == "+0.00 +- 0.00 (p = 1.000)"


def test_rouge_is_counted_as_it_was_asked_for(tmp_path):
    (tmp_path / "reference").write_text("Öl wird teurer\n")
    (tmp_path / "text").write_text("Öl billiger\n")
    settings = RougeSettings(tokenizer="unicode", stemming="off")
    metric = text_metric("rouge", tmp_path / "reference", data=tmp_path, split="test", language="de", rouge=settings)
    figures = metric.scored(tmp_path / "text", "text")
    assert figures["scores"][0]["f1"] == pytest.approx(100 * 2 / 5)  # one word of two, and of three
    assert "tok:unicode|stem:off" in metric.note([figures])


def test_differences_are_those_of_the_table(tmp_path):
    references = ["AT&amp;T rises &quot;more&quot; in May", "oil prices rise", "police kill gunman"] * 20
    hypotheses = ["at&t rises in may", "oil rises", "police kill man"] * 20
    texts = [references, ["oil prices"] * 60, hypotheses]
    for name, lines in zip(("reference", "A", "B"), texts):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    for metric in (
        RougeMetric(tmp_path / "reference"),
        RougeMetric(tmp_path / "reference", settings=RougeSettings(stemming="off", max_words=2)),
        BleuMetric(tmp_path / "reference", language="en"),
        BleuMetric(tmp_path / "reference", language="en", case="ignored"),
    ):
        read = {name: metric.translation(tmp_path / name, form="text").detokenized for name in "AB"}
        values = [
            [item.get("f1", item.get("value")) for item in metric.scored(tmp_path / name, "text")["scores"]]
            for name in "AB"
        ]
        (found,) = text_differences(list(read.items()), metric, baseline="A")
        told = [one["value"] for one in found["differences"].values()]
        assert told == pytest.approx([b - a for a, b in zip(*values)])


@pytest.mark.parametrize(
    "metric, told",
    [
        (PerplexityMetric(None), "A: perplexities are tested over seeds, of which B has only one"),
        (RougeMetric(), "C: no such name, choose one of A, B"),
    ],
)
def test_a_baseline_that_cannot_be_is_refused_before_anything_is_read(metric, told, tmp_path):
    runs = [("A", tmp_path / "1"), ("A", tmp_path / "2"), ("B", tmp_path / "3")]
    with pytest.raises(ValueError, match=f"^--baseline {told}$"):
        compare_runs(runs, metric, baseline=told[0])
    with pytest.raises(ValueError, match="^--baseline A: there is nothing else to test against it$"):
        compare_runs(runs[:2], metric, baseline="A")


def test_perplexities_are_tested_over_seeds():
    """Welch 1947, whose degrees of freedom are 4 for equal variances of three seeds, and 2 where one system has none.

    Student's t is within 2.776 and 4.303 in 95 % of cases.
    """
    perplexities = {"A": [90.0, 92.0, 91.0], "B": [88.0, 88.0, 88.0], "C": [90.0, 91.0, 89.0]}
    runs = [run(name, seed, test_perplexity=x) for name, xs in perplexities.items() for seed, x in enumerate(xs)]
    found = seed_differences(runs, baseline="A")
    assert [one["name"] for one in found] == ["B", "C"]
    b, c = (one["differences"]["test perplexity"] for one in found)
    assert (b["value"], c["value"]) == (pytest.approx(-3), pytest.approx(-1))
    assert b["interval"] == pytest.approx(4.303 * (1 / 3) ** 0.5, rel=1e-3)
    assert c["interval"] == pytest.approx(2.776 * (2 / 3) ** 0.5, rel=1e-3)
    assert b["p"] < 0.05 < c["p"]  # zero is outside of one interval and inside of the other
    table = differences_as_markdown(found, baseline="A", caption="by seeds")
    assert table.startswith("by seeds:") and "-3.00 +- 2.48" in table
    runs[-1] = run("C", 2, test_perplexity=math.inf)
    assert seed_differences(runs, baseline="A")[1]["differences"]["test perplexity"]["value"] == math.inf
    for p, written in ((1 / 1001, "p < 0.001"), (0.0011, "p = 0.001"), (float("nan"), "no p")):
        b["p"] = p
        assert f"-3.00 +- 2.48 ({written})" in differences_as_markdown(found, baseline="A", caption="by seeds")


def test_a_run_and_a_text_of_one_name_are_refused(tmp_path):
    runs, texts = [("A", tmp_path / "1"), ("B", tmp_path / "2")], [("A", tmp_path / "3")]
    with pytest.raises(ValueError, match="^A names a run and a text: give the text another name$"):
        compare_runs(runs, RougeMetric(), texts=texts)
