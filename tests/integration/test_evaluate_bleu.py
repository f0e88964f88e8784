"""From a trained translation model to BLEU: evaluate_translation, scripts/evaluate_bleu.sh and compare_runs."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest
from commands import ENVIRONMENT, ROOT, run
from translation_commands import EPOCHS

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "scripts/evaluate_bleu.sh"
COMMAND = "fairseq_plugins.cli.evaluate_translation"
evaluate_bleu = partial(run, COMMAND)
DECODES = "== decode test"
# a fairseq-generate that says what the real one said; told to wait, it waits after half of it and then says more
REPLAY = """
import os, pathlib, time
lines = pathlib.Path(os.environ["RECORDED"]).read_text().splitlines(keepends=True)
print(*lines[:60], sep="", end="", flush=True)
gate = os.environ.get("WAIT_FOR")
if gate:
    pathlib.Path(f"{gate}.waiting").touch()
    while not pathlib.Path(gate).exists():
        time.sleep(0.05)
    print("late")
print(*lines[60:], sep="", end="", flush=True)
if gate:
    pathlib.Path(f"{gate}.done").touch()
"""


def bleu(text):
    return float(re.search(r"BLEU, detokenised \(sacreBLEU\) +([\d.]+) \+-", text).group(1))


def wait_for(path):
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} does not appear"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def request_of(pair_data, translator, pairs):
    """``request_of(out, **changes)``: the script's arguments."""

    def request_of(out, **changes):
        asked = dict(data=pair_data, checkpoint=translator / "checkpoint_best.pt", reference=pairs / "test.tgt")
        asked = {**asked, **changes}
        return [asked["data"], "--path", asked["checkpoint"], "--reference", asked["reference"], "--out", out]

    return request_of


@pytest.fixture(scope="module")
def evaluated(request_of, tmp_path_factory):
    """What an undisturbed run wrote, with what it printed."""
    out = tmp_path_factory.mktemp("evaluated") / "my results"
    result = evaluate_bleu(*request_of(out), "--cpu")
    assert result.returncode == 0, result.stderr[-3000:]
    (out / "printed.txt").write_text(result.stdout)
    (out / "messages.txt").write_text(result.stderr)
    return out


@pytest.fixture
def copy(evaluated, tmp_path):
    """What that run wrote, for one test's use."""
    return shutil.copytree(evaluated, tmp_path / "copy of results")


@pytest.fixture
def replay(evaluated, tmp_path):
    """Environment in which fairseq-generate repeats what it said."""
    package = tmp_path / "stub/fairseq_cli"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "generate.py").write_text(REPLAY)
    recorded = evaluated / "generate.txt"
    assert len(recorded.read_text().splitlines()) > 120
    return {**ENVIRONMENT, "PYTHONPATH": str(package.parent), "RECORDED": str(recorded)}


def test_bleu_of_a_split_in_a_folder_with_spaces(evaluated, request_of, pairs, copy):
    printed = (evaluated / "printed.txt").read_text()
    assert bleu(printed) > 80 and "tok:13a" in printed and "tok:none" in printed
    num_lines = len((pairs / "test.tgt").read_text().splitlines())
    assert len((evaluated / "hypotheses.txt").read_text().splitlines()) == num_lines
    assert (evaluated / "scores.txt").read_text() == printed and DECODES in (evaluated / "messages.txt").read_text()
    again = evaluate_bleu(*request_of(copy), "--", "--cpu")
    assert again.stdout == printed and DECODES not in again.stderr


def test_case_counts_where_the_text_has_kept_it(evaluated, request_of, pair_data, pairs, tmp_path):
    upper = tmp_path / "test.tgt"
    upper.write_text((pairs / "test.tgt").read_text().upper())
    for record, flags, signature in (
        ("pairs, 9 merges", [], "c:mixed"),
        ("pairs, 9 merges", ["--lowercase"], "c:lc"),
        ("pairs, 9 merges, lowercase tokens", [], "c:lc"),
    ):
        data = shutil.copytree(
            pair_data, tmp_path / f"{record} {len(flags)}", ignore=shutil.ignore_patterns("digests.json")
        )
        (data / "prepared.txt").write_text(f"{record}\n")
        given = request_of(tmp_path / f"out of {data.name}", data=data, reference=upper)
        result = evaluate_bleu(*given, *flags, "--", "--cpu")
        assert f"|{signature}|" in result.stdout, result.stderr
        assert bleu(result.stdout) == (bleu((evaluated / "printed.txt").read_text()) if signature == "c:lc" else 0)


def test_two_systems_are_compared(evaluated, request_of, plain_translator, copy, tmp_path):
    other = tmp_path / "other"
    evaluate_bleu(*request_of(other, checkpoint=plain_translator / "checkpoint_last.pt"), "--", "--cpu")
    compared = evaluate_bleu(*request_of(copy), "--against", other, "--", "--cpu")
    values = bleu((evaluated / "printed.txt").read_text()), bleu((other / "scores.txt").read_text())
    assert "BLEU against the baseline: {:.2f} and {:.2f}, p = 0.".format(*values) in compared.stdout, compared.stderr


def test_a_system_against_itself_is_no_difference(evaluated, request_of, copy):
    result = evaluate_bleu(*request_of(copy), "--against", evaluated, "--", "--cpu")
    assert result.returncode == 0 and DECODES not in result.stderr, result.stderr
    value = bleu(result.stdout)
    assert f"BLEU against the baseline: {value:.2f} and {value:.2f}, p = 1.0000" in result.stdout
    assert result.stdout.count("p = 1.0000") == 2


@pytest.mark.parametrize(
    "changes, flags, told",
    [
        ({"checkpoint": "nowhere.pt"}, [], "nowhere.pt does not exist: give a checkpoint.*"),
        ({"checkpoint": "test.src:nowhere.pt"}, [], "nowhere.pt does not exist: give a checkpoint.*"),
        ({"reference": "nowhere.tgt"}, [], "nowhere.tgt does not exist: give a text file"),
        ({"data": "."}, [], ". has no test set: it holds no pairs"),
        ({"reference": "test.src"}, [], "test.src ends in src, and .* src into tgt: give a reference in tgt"),
        ({}, ["--lenpen", "3"], "--lenpen: flags of fairseq-generate come after --"),
        (
            {},
            ["--", "--sampling"],
            "flags of fairseq-generate: --sampling: --beam 5 draws as many samples: give --nbe.*",
        ),
        (
            {},
            ["--", "--min-len", "300"],
            "flags of fairseq-generate: --max-len-b 200 is below --min-len 300: no hypo.*",
        ),
        (
            {},
            ["--", "--constraints"],
            "flags of fairseq-generate: --constraints: fairseq-interactive alone reads them.*",
        ),
        ({}, ["--", "--tokenizer", "moses"], "--tokenizer after the --: leave it out, the text is detokenised when.*"),
        ({}, ["--", "--lenpan", "3"], "flags of fairseq-generate: unrecognized arguments: --lenpan 3"),
        ({}, ["--", "--lenpen", "x"], "flags of fairseq-generate: argument --lenpen: invalid float value: 'x'"),
        ({}, ["--against", "."], ". has no generate.txt: evaluate the baseline first"),
        ({}, ["--against", "nowhere"], "nowhere has no generate.txt: evaluate the baseline first"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_anything_is_translated(
    changes, flags, told, request_of, pairs, tmp_path
):
    shutil.copy(pairs / "test.src", tmp_path)
    out = tmp_path / "out"
    result = evaluate_bleu(*request_of(out, **changes), *flags, cwd=tmp_path)
    assert result.returncode == 2 and result.stdout == ""
    assert re.fullmatch(rf"python -m {COMMAND}: error: .*{told}\n", result.stderr), result.stderr
    assert not list(out.glob("*"))


def test_data_prepared_again_is_translated_again_only_where_it_is_other_data(request_of, pair_data, replay, tmp_path):
    data = shutil.copytree(pair_data, tmp_path / "data bin", ignore=shutil.ignore_patterns("digests.json"))
    (data / "digests.json").unlink(missing_ok=True)  # preparing anew rewrites it
    asked, stamp = request_of(tmp_path / "out", data=data), "2001-01-01"
    first = evaluate_bleu(*asked, environment=replay)
    subprocess.run(["touch", "-d", stamp, *data.iterdir()], check=True)
    shutil.copy(data / "test.src-tgt.src.bin", data / "train.src-tgt.src.bin")
    second = evaluate_bleu(*asked, environment=replay)
    content = (data / "test.src-tgt.src.bin").read_bytes()
    (data / "test.src-tgt.src.bin").write_bytes(content[::-1])
    third = evaluate_bleu(*asked, environment=replay)
    assert [DECODES in result.stderr for result in (first, second, third)] == [True, False, True]
    assert bleu(first.stdout) > 0 and first.stdout == second.stdout == third.stdout


@pytest.mark.parametrize("killed", ["the group", "the script"])
def test_a_killed_run_is_repaired_by_the_next(killed, evaluated, request_of, replay, tmp_path):
    asked, gate = request_of(tmp_path / "out"), tmp_path / "gate"
    process = subprocess.Popen(
        ["bash", SCRIPT, *map(str, asked)],
        env={**replay, "PYTHONPATH": f"{replay['PYTHONPATH']}:{ROOT}", "WAIT_FOR": str(gate)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_for(Path(f"{gate}.waiting"))
        if killed == "the script":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=60)
        assert not list((tmp_path / "out").glob("scores.txt"))
        repaired = evaluate_bleu(*asked, environment=replay)
    finally:
        gate.touch()
    time.sleep(0.3)
    assert not Path(f"{gate}.done").exists(), "fairseq-generate outlived the command that ran it"
    assert repaired.returncode == 0 and DECODES in repaired.stderr, repaired.stderr
    assert repaired.stdout == (evaluated / "printed.txt").read_text()
    for name in ("generate.txt", "hypotheses.txt", "scores.txt"):
        assert (tmp_path / "out" / name).read_bytes() == (evaluated / name).read_bytes(), name
    assert not list((tmp_path / "out").glob("*.tmp"))


def test_a_reference_that_does_not_fit_changes_nothing(evaluated, request_of, copy, tmp_path, pairs):
    lines = (pairs / "test.tgt").read_text().splitlines(keepends=True)
    (tmp_path / "short.tgt").write_text("".join(lines[:-1]))
    result = evaluate_bleu(*request_of(copy, reference=tmp_path / "short.tgt"), "--", "--cpu")
    assert result.returncode == 2 and f"line {len(lines)} has no counterpart" in result.stderr
    assert DECODES not in result.stderr and result.stdout == ""
    for name in ("generate.txt", "hypotheses.txt", "scores.txt"):
        assert (copy / name).read_bytes() == (evaluated / name).read_bytes(), name
    result = evaluate_bleu(*request_of(tmp_path / "new", reference=tmp_path / "short.tgt"), "--", "--cpu")
    assert result.returncode == 2 and f"line {len(lines)} has no counterpart" in result.stderr
    assert not (tmp_path / "new").exists()


# the table of several runs


@pytest.fixture
def finished(translator, evaluated, tmp_path):
    """A save directory as the recipes leave it."""
    run = tmp_path / "finished"
    run.mkdir()
    for name in ("checkpoint_best.pt", "train.log"):
        (run / name).symlink_to(translator / name)
    shutil.copytree(evaluated, run / "test")
    return run


def compare(data, runs, *flags):
    return run("fairseq_plugins.cli.compare_runs", data, "--path", *runs, "--metric", "bleu", *flags)


def test_a_table_a_file_and_a_picture_compare_the_runs(finished, evaluated, pair_data, pairs, tmp_path):
    out = tmp_path / "table"
    again = shutil.copytree(finished, tmp_path / "again", ignore=shutil.ignore_patterns("*.pt"))
    log = (again / "train.log").read_text()
    (again / "train.log").write_text(re.sub(r"'seed': \d+", "'seed': 7", log))
    runs = [f"one={finished}", f"two={finished}", f"one={again}"]
    result = compare(pair_data, runs, "--reference", pairs / "test.tgt", "--out", out)
    assert result.returncode == 0, result.stderr[-3000:]
    scores = (evaluated / "scores.txt").read_text()
    value = f"{bleu(scores):.2f}"
    table = (out / "table.md").read_text()
    one, mean, two = (re.findall(rf"^\| {name} +\|.*$", table, re.M) for name in ("one", "one, mean", "two"))
    assert len(one) == 2 and len(mean) == len(two) == 1
    assert f" {value} +- " in one[0] and f" {value} +- " in two[0] and f" {value} |" in mean[0]
    assert "tok:13a" in table and "tok:none" in table and two[0] in result.stdout
    figures = json.loads((out / "runs.json").read_text())["runs"]
    assert [run["name"] for run in figures] == ["one", "two", "one"]
    assert all(f"{run['scores'][0]['value']:.2f}" == value and run["epochs"] == EPOCHS for run in figures)
    assert all(len(run["valid_curve"]) == EPOCHS and run["parameters"] > 1000 for run in figures)
    assert (out / "learning_curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_without_its_checkpoint_has_the_same_figures(finished, pair_data, pairs, tmp_path):
    gone = shutil.copytree(finished, tmp_path / "gone", ignore=shutil.ignore_patterns("*.pt"))
    runs = [f"whole={finished}", f"gone={gone}"]
    out = tmp_path / "table"
    result = compare(pair_data, runs, "--reference", pairs / "test.tgt", "--baseline", "whole", "--out", out)
    assert result.returncode == 0, result.stderr[-3000:]
    assert re.findall("By log and text alone, without the checkpoint: (.*)", result.stdout) == ["gone (seed 1)."]
    whole, gone = json.loads((out / "runs.json").read_text())["runs"]
    assert (whole.pop("checkpoint"), gone.pop("checkpoint")) == ("checkpoint_best.pt", None)
    assert (whole.pop("name"), gone.pop("name")) == ("whole", "gone") and whole == gone


@pytest.mark.parametrize("missing", ["test/generate.txt", "train.log"])
def test_a_run_that_is_not_finished_is_refused_with_what_it_lacks(missing, finished, pair_data, pairs, tmp_path):
    (finished / missing).unlink()
    result = compare(pair_data, [f"one={finished}"], "--reference", pairs / "test.tgt", "--out", tmp_path / "table")
    assert result.returncode == 2 and result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert "compare_runs: error: " in line and str(finished / missing) in line
    assert not (tmp_path / "table").exists()
