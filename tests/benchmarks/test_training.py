"""Speed and memory are read of fairseq-train's processes; a stub stands in for them."""

import json
import resource

import pytest
import torch
import training
from fairseq import options
from printed_tables import rows_of
from speed_recipes import SUITES, only
from training import (
    BENCHMARK,
    TRANSLATION,
    TrainingSpeed,
    as_markdown,
    decoding_as_markdown,
    in_output_precisions,
    main,
    measure_trainings,
)

from fairseq_plugins.console import ProgramFailed
from fairseq_plugins.recipes import Recipe, System, training_arguments

RECIPE = Recipe(
    name="two",
    title="Two systems",
    corpus="none",
    systems={
        "slow": System({"arch": "lstm_lm_doc"}, label="a slow one"),
        "fast": System({"arch": "lstm_lm_awd"}),
        "broken": System({"arch": "lstm"}),
    },
)
STUB = """
import os, pathlib, sys
with pathlib.Path(os.environ["CALLS"]).open("a") as calls:
    print(*sys.argv[1:], file=calls)
if "--arch=lstm" in sys.argv:
    sys.exit("out of memory")
sys.stdout.buffer.write(b"no text: \\xff\\n")
speed = 100 if "--arch=lstm_lm_doc" in sys.argv else 400
print("| INFO | train_inner | epoch 001: loss=9, wps=1, ups=1")
for shift in (-1, 0, 1):
    print(f"| INFO | train_inner | epoch 001: loss=9, wps={speed + shift}, ups=1")
"""


@pytest.fixture
def calls(stand_in, tmp_path, monkeypatch):
    """``calls()``: arguments of the runs so far, by the stub of fairseq_cli.train."""
    stand_in("train", STUB)
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return lambda: [line.split() for line in (tmp_path / "calls").read_text().splitlines()]


def test_systems_train_by_turns_in_both_orders(calls):
    found = measure_trainings(
        only(RECIPE, ["slow", "fast"]), data="data", num_updates=20, num_rounds=2, flags=["--fp16", "--max-update", "7"]
    )
    assert {name: speed.words_per_second for name, speed in found.items()} == {"a slow one": 100, "fast": 400}
    held_here = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # Linux counts it for a child, too
    assert all(1 < speed.peak_mib < 1000 + held_here for speed in found.values())
    archs = [next(flag for flag in call if flag.startswith("--arch")) for call in calls()]
    assert archs == [f"--arch={arch}" for arch in ("lstm_lm_doc", "lstm_lm_awd", "lstm_lm_awd", "lstm_lm_doc")]
    for call in calls():
        assert call[0] == "data" and "--seed=1" in call and call[-3:] == ["--fp16", "--max-update", "7"]
        assert call[call.index("--log-interval") + 1] == "4" and {"--no-save", "--disable-validation"} <= set(call)


def test_a_failed_run_is_reported_with_the_end_of_its_log(calls):
    with pytest.raises(ProgramFailed, match="(?s)fairseq-train data .*--arch=lstm .*failed:.*out of memory"):
        measure_trainings(only(RECIPE, ["broken"]), data="data", num_updates=10, num_rounds=1)


def test_ratios_are_those_to_the_first():
    found = {"one": TrainingSpeed(1000.0, 1024.0), "two": TrainingSpeed(2500.0, 1536.0)}
    _, _, one, two = rows_of(as_markdown(found))
    assert one == ["one", "1,000", "1.00", "1.00", "1.0 GiB", "1.0"]
    assert two == ["two", "2,500", "2.50", "0.40", "1.5 GiB", "1.5"]
    *_, decoded = rows_of(decoding_as_markdown({"one": 50.0, "two": 75.0}))
    assert decoded == ["two", "75.0", "1.50"]


# suites, and precisions of the output layer

BOTH = ["float32", "bfloat16"]
THREE_SYSTEMS = Recipe(
    name="three",
    title="Three systems",
    corpus="none",
    systems={
        "fairseq": System({"arch": "lstm_lm"}, label="fairseq lstm_lm"),
        "doc": System({"arch": "lstm_lm_doc"}, label="DOC"),
        "plain": System({"arch": "lstm_lm_doc", "output-loss": "plain"}),
    },
)


def test_every_system_with_a_precision_stands_once_in_each():
    found = in_output_precisions(THREE_SYSTEMS, BOTH)
    assert list(found.systems) == ["fairseq", "doc-float32", "doc-bfloat16", "plain"]
    assert found.system("doc-bfloat16").flags == {"arch": "lstm_lm_doc", "output-precision": "bfloat16"}
    labels = [found.label(name) for name in list(found.systems)[:3]]
    assert labels == ["fairseq lstm_lm", "DOC, output in float32", "DOC, output in bfloat16"]
    assert all(found.system(name) == THREE_SYSTEMS.system(name) for name in ("fairseq", "plain"))
    found = in_output_precisions(only(THREE_SYSTEMS, ["plain", "doc"]), [])
    assert list(found.systems.items()) == [(name, THREE_SYSTEMS.system(name)) for name in ("plain", "doc")]


@pytest.mark.parametrize("suite", SUITES)
def test_every_system_of_a_suite_takes_its_flags(suite):
    recipe = in_output_precisions(SUITES[suite], BOTH)
    labels, precisions = [recipe.label(system) for system in recipe.systems], []
    assert len(set(labels)) == len(labels) > 1
    assert suite not in (*TRANSLATION, "fairseq") or labels[0].startswith("fairseq ")
    for system in recipe.systems if suite in ("ptb", "fairseq", *TRANSLATION) else ():
        typed = training_arguments(recipe, system, data="data", save_dir="checkpoints")
        parsed = options.parse_args_and_arch(options.get_training_parser(), input_args=typed)
        precisions.append(str(getattr(parsed, "output_precision", "none")))
    assert precisions.count("bfloat16") == sum(name.endswith("-bfloat16") for name in recipe.systems) * bool(precisions)


# the command line


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with ``data``."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/test.en-de.de.idx").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(training, "has_native_bfloat16", lambda device: True)
    return tmp_path


@pytest.fixture
def asked(monkeypatch):
    """Arguments of the measurements, which are not made."""
    calls = []

    def measure(recipe, **options):
        calls.append({**options, "systems": [*recipe.systems]})
        return {recipe.label(system): TrainingSpeed(100.0, 1024.0) for system in recipe.systems}

    def train(recipe, *, folder, flags, **_):
        calls.append({"flags": flags, "systems": [*recipe.systems]})
        return {recipe.label(system): "no checkpoint" for system in recipe.systems}

    def decode(data, checkpoints, *, device, **options):
        calls.append({**options, "decoded": list(checkpoints)})
        return dict.fromkeys(checkpoints, 9.0)

    monkeypatch.setattr(training, "measure_trainings", measure)
    monkeypatch.setattr(training, "train_briefly", train)
    monkeypatch.setattr(training, "measure_decoding", decode)
    return calls


def run_script(typed):
    main(BENCHMARK, typed.split())


@pytest.mark.parametrize(
    "typed, message",
    [
        ("data", "arguments are required: --suite"),
        ("data --suite none", "argument --suite: invalid choice: 'none'"),
        ("missing --suite ptb", "missing does not exist"),
        ("data --suite ptb --updates 9", "argument --updates: 9: give a whole number of at least 10"),
        ("data --suite ptb --rounds 0", "argument --rounds: 0: give a whole number of at least 1"),
        ("data --suite lstm --length 0", "argument --length: 0: give a whole number of at least 1"),
        ("data --suite lstm --systems nobody", "--systems nobody: choose among fairseq "),
        ("data --suite ptb -- --cpu", "--cpu: give it before the --"),
        ("data --suite ptb --fp16", "--fp16: flags of fairseq-train come after --"),
        ("data --suite ptb --output-precision half", "--output-precision: invalid choice: 'half'"),
        (
            "data --suite ptb --output-precision float32 -- --output-precision=bfloat16",
            "--output-precision: give it either before the -- or after",
        ),
        ("data --suite ptb --out data/test.en-de.de.idx", "--out: "),
        ("empty --suite lstm", "empty has no test set: it holds no pairs"),
        ("data --suite ptb --output-precision bfloat16", "this cpu has no matrix products in bfloat16"),
    ],
)
def test_what_cannot_be_measured_is_one_line(typed, message, folder, asked, monkeypatch, capsys):
    (folder / "empty").mkdir()
    monkeypatch.setattr(training, "has_native_bfloat16", lambda device: False)
    with pytest.raises(SystemExit) as error:
        run_script(typed)
    (line,) = capsys.readouterr().err.splitlines()
    assert error.value.code == 2 and message in line and not asked
    assert {path.name for path in folder.iterdir()} == {"data", "empty"}


def test_further_flags_reach_the_runs_and_the_name_of_the_report(folder, asked):
    run_script("data --suite reduced --cpu -- --restore-file a/b.pt")
    (call,) = asked
    assert call["flags"] == ["--cpu", "--restore-file", "a/b.pt"] and call["data"] == "data"
    assert (call["num_updates"], call["num_rounds"]) == (40, 4)
    figures = json.loads((folder / "results/benchmarks/lm_reduced_cpu_restore-file_a-b.pt.json").read_text())
    assert len(figures["models"]) == 3 and figures["rounds"] == 4 and figures["updates"] == 40


@pytest.mark.parametrize(
    "typed, file, systems",
    [
        ("--suite transformer --systems tied drill", "transformer_cpu_tied_drill", ["tied", "drill"]),
        ("--suite fairseq --output-precision float32 bfloat16", "lm_fairseq_cpu_float32_bfloat16", None),
        (
            "--suite lstm --systems fairseq mos --output-precision float32 bfloat16",
            "translation_cpu_fairseq_mos_float32_bfloat16",
            ["fairseq", "mos-float32", "mos-bfloat16"],
        ),
    ],
)
def test_chosen_systems_are_measured_in_all_precisions_in_one_run(typed, file, systems, folder, asked):
    run_script(f"data {typed} --cpu --rounds 2 --length 7 --out out")
    trained = [call for call in asked if "systems" in call]
    expected = systems or ["fairseq", "awd-float32", "awd-bfloat16"]
    assert trained and all(call["systems"] == expected and call["flags"] == ["--cpu"] for call in trained)
    assert (trained[-1]["num_updates"], trained[-1]["num_rounds"]) == (40, 2)
    figures = json.loads((folder / f"out/{file}.json").read_text())
    if systems:
        assert (asked[-1]["num_rounds"], asked[-1]["length"]) == (2, 7)
        assert len(figures["training"]) == len(figures["sentences_per_second"]) == len(systems)
    table = (folder / f"out/{file}.md").read_text()
    assert ("output in float32 " in table and "output in bfloat16 " in table) == ("precision" in typed)
