"""The commands that measure: what they refuse before any work, and the files they write."""

import json

import pytest
import torch

from fairseq_plugins.benchmarks import training
from fairseq_plugins.benchmarks.training import TrainingSpeed
from fairseq_plugins.cli import benchmark_lm, benchmark_translation
from fairseq_plugins.cli.__main__ import all_commands

COMMANDS = all_commands()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with ``data``."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/test.en-de.de.idx").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return tmp_path


@pytest.fixture
def asked(monkeypatch):
    """What was asked of the trainings, which are not run."""
    calls = []

    def measure(recipe, systems, **options):
        calls.append({**options, "systems": systems})
        return {recipe.label(system): TrainingSpeed(100.0, 1024.0) for system in systems}

    def train(recipe, systems, *, folder, flags, **_):
        calls.append({"flags": flags, "systems": systems})
        return {recipe.label(system): "no checkpoint" for system in systems}

    def decode(data, checkpoints, *, device, **options):
        calls.append({**options, "decoded": list(checkpoints)})
        return dict.fromkeys(checkpoints, 9.0)

    for module in (benchmark_lm, benchmark_translation):
        monkeypatch.setattr(module, "measure_trainings", measure)
    monkeypatch.setattr(benchmark_translation, "train_briefly", train)
    monkeypatch.setattr(benchmark_translation, "measure_decoding", decode)
    return calls


def refused(name, typed, capsys):
    with pytest.raises(SystemExit) as error:
        COMMANDS[name].main(typed.split())
    (line,) = capsys.readouterr().err.splitlines()
    assert error.value.code == 2
    return line


@pytest.mark.parametrize(
    "name, typed, told",
    [
        ("benchmark_lm", "data", "arguments are required: --suite"),
        ("benchmark_lm", "data --suite none", "argument --suite: invalid choice: 'none'"),
        ("benchmark_lm", "data --suite ptb --updates 9", "--updates 9: give at least 10"),
        ("benchmark_lm", "data --suite ptb -- --cpu", "--cpu: give it before the --"),
        ("benchmark_lm", "data --suite ptb --fp16", "--fp16: flags of fairseq-train come after --"),
        ("benchmark_lm", "data --suite ptb --output-precision half", "--output-precision: invalid choice: 'half'"),
        (
            "benchmark_lm",
            "data --suite ptb --output-precision float32 -- --output-precision=bfloat16",
            "--output-precision: give it either before the -- or after",
        ),
        ("benchmark_lm", "missing --suite ptb", "missing does not exist"),
        ("benchmark_translation", "missing --suite lstm", "missing does not exist"),
        ("benchmark_translation", "data --suite lstm --length 0", "--length 0: give at least 1"),
        ("benchmark_translation", "data --suite lstm --systems nobody", "--systems nobody: choose among host "),
        ("benchmark_evaluation", "data --path lm.pt --rounds 0", "--rounds 0: give at least 1"),
        ("benchmark_evaluation", "data --path lm.pt --lines 0", "--lines 0: give at least 1"),
        ("benchmark_evaluation", "data --path lm.pt --words 1", "--words 1: give at least 2, for the first is not"),
        ("benchmark_output_layer", "10,2,3,4 --repetitions 0", "--repetitions 0: give at least 1"),
    ],
)
def test_what_cannot_be_measured_is_one_line(name, typed, told, folder, asked, capsys):
    assert told in refused(name, typed, capsys)
    assert not asked and [path.name for path in folder.iterdir()] == ["data"]


@pytest.mark.parametrize(
    "name, typed", [("benchmark_lm", "data --suite ptb"), ("benchmark_translation", "data --suite lstm")]
)
def test_a_folder_that_cannot_be_made_is_refused_before_the_work_though_it_is_the_default(
    name, typed, folder, asked, capsys
):
    (folder / "results").touch()
    told = refused(name, typed, capsys)
    assert "--out: results/benchmarks: " in told and "results is a file: give a folder" in told
    assert not asked


def test_further_flags_reach_the_trainings_and_the_name_of_the_report(folder, asked):
    COMMANDS["benchmark_lm"].main("data --suite reduced --cpu -- --restore-file a/b.pt".split())
    (call,) = asked
    assert call["flags"] == ["--cpu", "--restore-file", "a/b.pt"] and call["data"] == "data"
    assert (call["num_updates"], call["num_rounds"]) == (40, 4)
    figures = json.loads((folder / "results/benchmarks/lm_reduced_cpu_restore-file_a-b.pt.json").read_text())
    assert len(figures["models"]) == 3 and figures["rounds"] == 4 and figures["updates"] == 40


def test_products_alone_stand_beside_the_trainings_that_have_some(folder, asked, monkeypatch):
    speeds = iter([400.0, 200.0])  # before and after the trainings

    def measure(recipe, systems, *, device):
        return dict.fromkeys(map(recipe.label, systems), next(speeds))

    monkeypatch.setattr(benchmark_lm, "speed_of_highway_products", measure)
    COMMANDS["benchmark_lm"].main("data --suite rhn --cpu --out out".split())
    figures = json.loads((folder / "out/lm_rhn_cpu.json").read_text())
    assert figures["words_per_second_of_products"] == {"rhn_lm_ptb": 400.0, "rhn_lm_tied_ptb": 400.0}
    rows = [row.replace("|", " ").split() for row in (folder / "out/lm_rhn_cpu.md").read_text().splitlines()]
    assert ["rhn_lm_ptb", "400", "0.25"] in rows and not list(speeds)


def test_products_are_left_out_where_further_flags_may_change_the_trainings(folder, asked, monkeypatch):
    monkeypatch.setattr(benchmark_lm, "speed_of_highway_products", None)
    COMMANDS["benchmark_lm"].main("data --suite rhn --cpu --out out -- --batch-size 40".split())
    figures = json.loads((folder / "out/lm_rhn_cpu_batch-size_40.json").read_text())
    assert "words_per_second_of_products" not in figures and len(asked) == 1


def test_translation_is_measured_on_the_cpu_where_that_is_asked(folder, asked):
    COMMANDS["benchmark_translation"].main(
        "data --suite transformer --cpu --systems tied drill --rounds 2 --length 7 --out out".split()
    )
    trained, timed, decoded = asked
    assert trained["flags"] == timed["flags"] == ["--cpu"]
    assert (timed["num_updates"], timed["num_rounds"]) == (40, 2)
    assert (decoded["num_rounds"], decoded["length"]) == (2, 7)
    figures = json.loads((folder / "out/transformer_cpu_tied_drill.json").read_text())
    assert len(figures["training"]) == len(figures["sentences_per_second"]) == 2


def test_pairs_without_a_test_set_are_refused_before_anything_is_measured(folder, asked, capsys):
    (folder / "data/test.en-de.de.idx").unlink()
    assert "data has no test set: it holds no pairs" in refused("benchmark_translation", "data --suite lstm", capsys)
    assert not asked


@pytest.mark.parametrize("name", ["benchmark_lm", "benchmark_translation"])
def test_a_precision_that_the_processor_lacks_is_refused(name, folder, asked, monkeypatch, capsys):
    monkeypatch.setattr(training, "has_native_bfloat16", lambda device: False)
    suite = "ptb" if name == "benchmark_lm" else "lstm"
    told = refused(name, f"data --suite {suite} --output-precision float32 bfloat16", capsys)
    assert "--output-precision bfloat16: this cpu has no matrix products in bfloat16" in told and not asked


@pytest.mark.parametrize(
    "name, typed, file, systems",
    [
        (
            "benchmark_lm",
            "data --suite host",
            "lm_host_cpu_float32_bfloat16",
            ["host", "awd-float32", "awd-bfloat16"],
        ),
        (
            "benchmark_translation",
            "data --suite lstm --systems host mos",
            "translation_cpu_host_mos_float32_bfloat16",
            ["host", "mos-float32", "mos-bfloat16"],
        ),
    ],
)
def test_systems_are_measured_in_both_precisions_in_one_run(name, typed, file, systems, folder, asked, monkeypatch):
    monkeypatch.setattr(training, "has_native_bfloat16", lambda device: True)
    monkeypatch.setattr(benchmark_translation, "speed_of_products", lambda path, *, device: 1000.0)
    COMMANDS[name].main(f"{typed} --cpu --out out --output-precision float32 bfloat16".split())
    trained = [call["systems"] for call in asked if "systems" in call]
    assert trained and all(found == systems for found in trained)
    table = (folder / f"out/{file}.md").read_text()
    assert "output in float32 " in table and "output in bfloat16 " in table


def test_baselines_of_headlines(folder):
    (folder / "articles").write_text("oil prices rise again today\npolice kill a gunman\n")
    (folder / "titles").write_text("".join(f"oil up {number}\n" for number in range(1000)))
    line, drawn = "--articles articles --titles titles --words 2", []
    for out, seed in (("a", 3), ("b", 3), ("c", 4)):
        COMMANDS["headline_baselines"].main(f"{line} --out {out} --seed {seed}".split())
        assert (folder / out / "first_words.txt").read_text() == "oil prices\npolice kill\n"
        drawn.append((folder / out / "random_title.txt").read_text().splitlines())
    assert drawn[0] == drawn[1] != drawn[2] and drawn[0][0] != drawn[0][1]
    assert all(title in (folder / "titles").read_text().splitlines() for titles in drawn for title in titles)
