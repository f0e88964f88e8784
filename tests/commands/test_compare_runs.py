"""Commands that compare runs: what they refuse before they read a model, and learning curves by logs alone."""

import json

import pytest
from printed_tables import rows_of
from typed_commands import refused, type_command

from fairseq_plugins.commands import compare
from fairseq_plugins.metrics.rouge import RougeSettings


def test_settings_of_rouge_are_those_asked_for(tmp_path, monkeypatch, capsys):
    class Asked(Exception):
        pass

    (tmp_path / "valid.de-en.en.idx").touch()
    reference = tmp_path / "reference"
    reference.write_text("a headline\n")

    def text_metric(name, reference, *, data, split, language, rouge):
        assert (name, rouge) == ("rouge", RougeSettings(tokenizer="unicode", max_words=9))
        assert (reference.name, data, split, language) == ("reference", tmp_path, "valid", "en")
        raise Asked

    monkeypatch.setattr(compare, "text_metric", text_metric)
    given = [tmp_path, "--path", "A=nowhere", "--out", tmp_path / "out", "--split", "valid"]
    given += ["--metric", "rouge", "--tokenizer", "unicode", "--max-words", "9", "--reference"]
    with pytest.raises(Asked):
        type_command("compare runs", [*given, reference])
    for text in (["-"], [reference, "--text", "B=-"]):
        assert "-: it is read several times, give a regular file" in refused("compare runs", [*given, *text], capsys)


# learning curves of trainings by their logs alone

FLAGS = (
    "x | INFO | fairseq_cli.train | {{'_name': None, 'common': {{'_name': None, 'seed': {seed}, 'cpu': True}}, "
    "'task': {{'seed': 7}}}}\n"
)
EPOCH = (
    "x | INFO | valid | epoch 00{epoch} | loss 1 | ppl {perplexity} | bleu {bleu} | wps 5\n"
    "x | INFO | train | epoch 00{epoch} | loss 1 | ppl 2.5 | wps 50 | wall {wall}\n"
)


def training(folder, *perplexities, seed):
    """A log of so many epochs, which scored 20 less the perplexity."""
    folder.mkdir()
    log = FLAGS.format(seed=seed)
    for epoch, perplexity in enumerate(perplexities, start=1):
        log += EPOCH.format(epoch=epoch, perplexity=perplexity, bleu=20 - perplexity, wall=epoch * 36)
    (folder / "train.log").write_text(log)
    return f"A={folder}"


@pytest.fixture
def seeds(tmp_path):
    return [training(tmp_path / "one", 8.0, 4.0, 5.0, seed=1), training(tmp_path / "two", 7.0, 6.0, seed=2)]


def test_trainings_have_their_best_and_their_last_epochs_and_their_mean(seeds, capsys):
    type_command("compare curves", ["--path", *seeds])
    title, _, first, second, mean, deviation = rows_of(capsys.readouterr().out)
    named = [dict(zip(title, row)) for row in (first, second, mean)]
    assert [row["training"] for row in named] == ["A", "A", "A, mean"]
    assert [row["seed"] for row in named] == ["1", "2", ""]
    assert [row["epochs"] for row in named] == ["3", "2", ""]
    assert [row["last valid perplexity"] for row in named] == ["5.00", "6.00", ""]
    assert [row["lowest valid perplexity"] for row in named] == ["4.00", "6.00", "5.00"]
    assert [row["highest valid BLEU"] for row in named] == ["16.00", "14.00", "15.00"]
    assert [row["hours"] for row in named] == ["0.03", "0.02", ""]
    assert deviation[0] == "A, standard deviation"


def test_the_curves_are_in_the_record_and_in_the_picture(seeds, tmp_path, capsys):
    type_command("compare curves", ["--path", *seeds, "--json", "--plot", str(tmp_path / "curves.png")])
    first, second = json.loads(capsys.readouterr().out)["runs"]
    assert (first["seed"], second["seed"]) == (1, 2)
    assert first["valid_curve"] == {"1": 8, "2": 4, "3": 5}
    assert second["score_curves"] == {"bleu": {"1": 13, "2": 14}}
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_one_training_given_twice_is_refused(seeds, tmp_path, capsys):
    folder = seeds[0].partition("=")[2]
    told = refused("compare curves", ["--path", seeds[0], seeds[0]], capsys)
    assert f"{folder} and {folder} are both A with seed 1" in told


@pytest.mark.parametrize("broken", ["inf", "nan"])
def test_a_seed_that_diverged_has_no_deviation_and_hides_nothing(broken, tmp_path, capsys):
    paths = [training(tmp_path / "one", 8.0, 4.0, 5.0, seed=1), training(tmp_path / "two", 5.0, 7.0, 6.0, seed=2)]
    log = tmp_path / "two" / "train.log"
    log.write_text(log.read_text().replace("ppl 5.0", f"ppl {broken}").replace("ppl 6.0", f"ppl {broken}"))
    type_command("compare curves", ["--path", *paths])
    title, _, *rows = rows_of(capsys.readouterr().out)
    _, diverged, mean, deviation = (dict(zip(title, row)) for row in rows)
    assert (diverged["last valid perplexity"], diverged["lowest valid perplexity"]) == (broken, "7.00")
    assert (mean["last valid perplexity"], deviation["last valid perplexity"]) == (broken, "nan")
    assert (mean["lowest valid perplexity"], deviation["lowest valid perplexity"]) == ("5.50", "2.12")
