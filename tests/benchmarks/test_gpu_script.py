"""The timing script for a GPU, on the CPU at tiny size."""

import json

import gpu
import pytest
import torch
from gpu import BENCHMARK, CASES, MEASUREMENTS, PRECISIONS, main


def run_script(typed):
    main(BENCHMARK, typed.split())


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_list_has_every_measurement(capsys):
    run_script("--list")
    assert capsys.readouterr().out.splitlines() == list(MEASUREMENTS)
    assert {f"loss {case} {precision}" for case in CASES for precision in PRECISIONS} < MEASUREMENTS.keys()
    run_script("--list --only lm")
    assert len(capsys.readouterr().out.splitlines()) == 7


@pytest.mark.parametrize(
    "typed, message",
    [
        ("--cpu", "give --out FILE.jsonl"),
        ("--out out.jsonl", "torch finds no GPU here: give --cpu --small to try the script"),
        ("--cpu --out out.jsonl --only nothing", "--only nothing: no measurement has such a name: see --list"),
        ("--cpu --out old.jsonl", "old.jsonl, line 2: no measurement of this script: delete the line"),
        ("--cpu --out old.jsonl --text missing", "missing does not exist"),
        ("--cpu --out out.jsonl --repetitions 0", "argument --repetitions: 0: give a whole number of at least 1"),
    ],
)
def test_mistakes_are_one_line(typed, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (tmp_path / "old.jsonl").write_text('{"name": "launch"}\n{"name": "lau')
    with pytest.raises(SystemExit) as error:
        run_script(typed)
    (line,) = capsys.readouterr().err.splitlines()
    assert error.value.code == 2 and message in line and not (tmp_path / "out.jsonl").exists()


def test_launches_and_the_loss_are_measured_in_every_precision(tmp_path):
    run_script(f"--cpu --small --repetitions 2 --out {tmp_path / 'out'} --only launch loss")
    launch, *losses = lines(tmp_path / "out")
    assert launch["figures"]["host_us"]["number"] == 2 and launch["figures"]["copy_gb_per_s"]["lowest"] > 0
    assert len(losses) == len(CASES) * len(PRECISIONS)
    for line in losses:
        assert line["device"] == "cpu" and line["torch"] == torch.__version__ and line["commit"] and line["date"]
        loss, products = line["figures"]["loss_ms"], line["figures"]["products_ms"]
        assert 0 < loss["lowest"] <= loss["median"] <= loss["highest"]
        assert line["figures"]["loss / products"] == pytest.approx(loss["median"] / products["median"])


def test_what_the_file_has_is_skipped_and_what_failed_is_tried_again(tmp_path, monkeypatch, capsys):
    done = []

    def measure(name, *, fails=False):
        def run(args):
            done.append(name)
            if fails:
                raise RuntimeError("no kernel image")
            return {"value": float("nan")}

        return run

    monkeypatch.setattr(gpu, "MEASUREMENTS", {"a": measure("a"), "b": measure("b", fails=True), "c": measure("c")})
    line = f"--cpu --out {tmp_path / 'out'}"
    with pytest.raises(SystemExit):
        run_script(line)
    a, b, c = lines(tmp_path / "out")
    assert a["figures"] == {"value": None} and b["error"] == "RuntimeError: no kernel image" and "figures" not in b
    told, error = capsys.readouterr()
    assert told.splitlines() == ["a done", "b failed", "c done"] and "error: b: failed, see " in error
    with pytest.raises(SystemExit):
        run_script(line)
    assert done == ["a", "b", "c", "b"] and len(lines(tmp_path / "out")) == 4
    monkeypatch.setattr(gpu, "describe_code", lambda: "another commit")
    run_script(f"{line} --only a")
    assert done[4:] == ["a"] and lines(tmp_path / "out")[-1]["commit"] == "another commit"
    run_script(f"{line} --only a --small")
    assert done[5:] == ["a"] and lines(tmp_path / "out")[-1]["small"]


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_models_are_timed_and_profiled(tmp_path):
    names = ["translation fairseq lstm, l2_adam", "profile doc"]
    main(BENCHMARK, ["--cpu", "--small", "--out", str(tmp_path / "out"), "--only", *names])
    training, profile = lines(tmp_path / "out")
    assert [training["name"], profile["name"]] == names
    assert training["figures"]["words_per_second"]["number"] == 4 and training["figures"]["peak_mib"] > 0
    assert profile["figures"]["ms_an_update"] > 0 and any("aten::" in row for row in profile["figures"]["table"])
