"""A model that was trained from the target side of a folder's files to the source side: its checkpoint decides."""

import re
import shutil

import pytest
from commands import run
from translation_commands import FAIRSEQ_FLAGS, train_to_the_end, train_translation

from fairseq_plugins.cli.rescore_nbest import RescoreNbest

TURNED = ("--source-lang", "tgt", "--target-lang", "src")
BRIEF = ("--max-update", "2")


@pytest.fixture(scope="module")
def data(pair_data, pairs, tmp_path_factory):
    """``src-tgt`` files with the raw texts beside them."""
    copy = shutil.copytree(
        pair_data, tmp_path_factory.mktemp("turned") / "data", ignore=shutil.ignore_patterns("digests.json")
    )
    (copy / "raw").mkdir()
    for side in ("src", "tgt"):
        shutil.copy(pairs / f"test.{side}", copy / "raw")
    return copy


@pytest.fixture(scope="module")
def turned(data, made_once):
    """A ``--save-dir`` with ``train.log``."""

    def make(save_dir):
        (save_dir / "train.log").write_text(train_to_the_end(data, save_dir, *TURNED, *BRIEF))

    return made_once("turned translator", make)


@pytest.fixture(scope="module")
def forward(data, made_once):
    """A ``--save-dir`` of a run without languages, which takes those of the folder."""
    return made_once("forward translator", lambda save_dir: train_to_the_end(data, save_dir, *BRIEF))


def texts(output, kind):
    found = dict(re.findall(rf"^{kind}-(\d+)\t(.*)$", output, re.M))
    return [found[str(number)] for number in range(len(found))]


def refused(result):
    assert result.returncode == 2 or "Traceback" not in result.stderr, result.stderr[-2000:]
    assert result.returncode != 0
    return result.stderr.splitlines()[-1]


def test_everything_that_scores_a_split_reads_its_target_side(data, turned, pairs, tmp_path):
    sources, targets = ((pairs / f"test.{side}").read_text().splitlines() for side in ("tgt", "src"))
    model = turned / "checkpoint_best.pt"
    scored = run("fairseq_plugins.cli.evaluate_translation", data, "--path", model, "--out", turned / "test", "--cpu")
    assert scored.returncode == 0, scored.stderr[-3000:]
    generated = (turned / "test/generate.txt").read_text()
    assert texts(generated, "S") == sources and texts(generated, "T") == targets
    told = run("fairseq_plugins.cli.generate_split", data, "--path", model, "--out", tmp_path / "again", "--cpu")
    assert told.returncode == 0 and (tmp_path / "again/generate.txt").read_text().count("\nS-") >= len(sources) - 1
    assert texts((tmp_path / "again/generate.txt").read_text(), "S") == sources
    rouge = run("fairseq_plugins.cli.evaluate_rouge", data, "--path", model, "--out", turned / "test", "--cpu")
    assert rouge.returncode == 0 and "== decode" not in rouge.stderr, rouge.stderr[-3000:]
    gone = shutil.copytree(turned, tmp_path / "gone", ignore=shutil.ignore_patterns("*.pt"))
    for metric in ("bleu", "rouge"):
        runs = [f"here={turned}", f"gone={gone}"]
        table = run(
            *("fairseq_plugins.cli.compare_runs", data, "--path", *runs, "--metric", metric, "--cpu"),
            *("--out", tmp_path / metric),
        )
        assert table.returncode == 0, table.stderr[-3000:]


def test_fairseq_generates_in_the_direction_of_the_checkpoint(data, turned, pairs):
    flags = [data, *FAIRSEQ_FLAGS, "--path", turned / "checkpoint_best.pt", "--beam", 1, "--max-len-b", 3]
    result = run("fairseq_cli.generate", *flags)
    assert result.returncode == 0, result.stderr[-3000:]
    assert texts(result.stdout, "S") == (pairs / "test.tgt").read_text().splitlines()
    typed = run("fairseq_cli.interactive", *flags, stdin=b"xa xb\n")
    assert texts(typed.stdout, "S") == ["xa xb"], typed.stderr[-3000:]


@pytest.mark.parametrize("flags", [["-s", "src", "-t", "tgt"], ["--source-lang=src"], ["-t", "tgt"]])
def test_another_direction_is_refused_in_a_line(flags, data, turned, tmp_path):
    model = turned / "checkpoint_best.pt"
    told = r"checkpoint_best.pt translates tgt into src, not \S+ into \S+: give --source-lang tgt --target-lang src"
    assert re.search(told, refused(run("fairseq_cli.generate", data, *FAIRSEQ_FLAGS, "--path", model, *flags)))
    ours = run(
        "fairseq_plugins.cli.generate_split", data, "--path", model, "--out", tmp_path / "out", "--cpu", "--", *flags
    )
    assert ours.returncode == 2 and re.search(told, refused(ours)) and not (tmp_path / "out").exists()
    if len(flags) == 4:
        validated = run("fairseq_cli.validate", data, *FAIRSEQ_FLAGS, "--path", model, "--batch-size", 9, *flags)
        assert re.search(told, refused(validated))


def test_models_of_two_directions_are_no_ensemble(data, turned, forward, tmp_path, capsys):
    models = [turned / "checkpoint_best.pt", forward / "checkpoint_best.pt"]
    told = "the models translate src-tgt and tgt-src: give models of one pair of languages"
    asked = run("fairseq_plugins.cli.generate_split", data, "--path", *models, "--out", tmp_path / "out")
    assert asked.returncode == 2 and told in refused(asked)
    joined = ":".join(map(str, models))
    assert "translates src into tgt" in refused(run("fairseq_cli.generate", data, *FAIRSEQ_FLAGS, "--path", joined))
    (tmp_path / "lists").write_text("S-0\txa xb\nT-0\tb a\nH-0\t-1\tb a\n")
    arguments = [data, "--path", *models, "--input", tmp_path / "lists", "--tune", tmp_path / "weights", "--cpu"]
    with pytest.raises(SystemExit) as end:
        RescoreNbest().main(arguments)
    assert end.value.code == 2 and told in capsys.readouterr().err
    runs = [f"{place}={model}" for place, model in enumerate(models)]
    compared = run("fairseq_plugins.cli.compare_runs", data, "--path", *runs, "--metric", "bleu", "--out", tmp_path)
    assert compared.returncode == 2 and told in refused(compared)


def test_a_run_resumes_in_its_direction(data, turned, tmp_path):
    save_dir = shutil.copytree(turned, tmp_path / "run")
    told = refused(train_translation(data, save_dir, "--max-update", 3))
    assert "checkpoint_last.pt translates tgt into src, not src into tgt: give --source-lang tgt" in told


@pytest.mark.parametrize(
    "reference, flags, told",
    [
        ("raw/test.tgt", [], "test.tgt ends in tgt, and .* translates tgt into src: give a reference in src"),
        ("raw/test.src", ["--split", "dev"], "has no dev set: take one of test, train, valid"),
    ],
)
def test_references_and_splits_are_those_of_the_models_languages(reference, flags, told, data, turned, tmp_path):
    model = turned / "checkpoint_best.pt"
    out = ["--out", tmp_path / "out", "--reference", data / reference]
    result = run("fairseq_plugins.cli.evaluate_translation", data, "--path", model, *out, *flags)
    assert result.returncode == 2 and re.search(told, refused(result))
    if flags:
        table = ["--path", f"a={turned}", "--metric", "bleu", *flags, "--out", tmp_path]
        compared = run("fairseq_plugins.cli.compare_runs", data, *table)
        assert compared.returncode == 2 and re.search(told, refused(compared))
