"""BLEU of a trained translator and of texts: evaluate bleu, scripts/evaluate_bleu.sh and compare runs."""

import fcntl
import io
import json
import os
import re
import shutil
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest
import sacrebleu
from binarised_lines import copy_data, write_split
from commands import ENVIRONMENT, ROOT, run
from sacrebleu.tokenizers import tokenizer_ja_mecab
from translation_commands import EPOCHS
from typed_commands import type_command

from fairseq_plugins.evaluation import decoding

SCRIPT = ROOT / "scripts/evaluate_bleu.sh"
evaluate_bleu = partial(run, "fairseq_plugins", "evaluate", "bleu")
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
    """The output folder of an undisturbed run, with what it printed."""
    out = tmp_path_factory.mktemp("evaluated") / "my results"
    result = evaluate_bleu(*request_of(out), "--cpu")
    assert result.returncode == 0, result.stderr[-3000:]
    (out / "printed.txt").write_text(result.stdout)
    (out / "messages.txt").write_text(result.stderr)
    return out


@pytest.fixture
def copy(evaluated, tmp_path):
    """A copy of that folder for one test."""
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
    for case, flags, signature in (
        ("kept", [], "c:mixed"),
        ("kept", ["--lowercase"], "c:lc"),
        ("lower tokens", [], "c:lc"),
    ):
        data = copy_data(pair_data, tmp_path / f"{case} {len(flags)}")
        (data / "text.json").write_text(json.dumps({"tokenizer": "moses", "case": case}))
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


@pytest.mark.parametrize(
    "changes, flags, told",
    [
        ({"checkpoint": "nowhere.pt"}, [], "nowhere.pt does not exist: give a checkpoint.*"),
        ({"checkpoint": "test.src:nowhere.pt"}, [], "nowhere.pt does not exist: give a checkpoint.*"),
        ({"reference": "nowhere.tgt"}, [], "nowhere.tgt does not exist: give a text file"),
        ({"data": "."}, [], ". has no test set: it holds no pairs"),
        ({"reference": "test.src"}, [], "test.src ends in src, and .* src into tgt: give a reference in tgt"),
        ({}, ["--lenpen", "3"], "--lenpen: flags of fairseq-generate come after --"),
        ({}, ["--", "--tokenizer", "moses"], "--tokenizer after the --: leave it out, the text is detokenised when.*"),
        (
            {},
            ["--", "--lenpan", "3"],
            "flags of fairseq-generate: unrecognized arguments: --lenpan 3 .did you mean.*",
        ),
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
    assert re.fullmatch(rf"fairseq-plugins evaluate bleu: error: .*{told}\n", result.stderr), result.stderr
    assert not list(out.glob("*"))


def test_a_killed_run_is_repaired_by_the_next(evaluated, request_of, replay, tmp_path):
    asked, gate = request_of(tmp_path / "out"), tmp_path / "gate"
    process = subprocess.Popen(
        ["bash", SCRIPT, *map(str, asked)],
        env={**replay, "PYTHONPATH": f"{replay['PYTHONPATH']}:{ROOT}", "WAIT_FOR": str(gate)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(Path(f"{gate}.waiting"))
        process.kill()
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
    return run("fairseq_plugins", "compare", "runs", data, "--path", *runs, "--metric", "bleu", *flags)


def test_a_table_a_file_and_a_picture_compare_the_runs(finished, evaluated, pair_data, pairs, tmp_path):
    out = tmp_path / "table"
    again = shutil.copytree(finished, tmp_path / "again", ignore=shutil.ignore_patterns("*.pt"))
    log = (again / "train.log").read_text()
    (again / "train.log").write_text(re.sub(r", seed \d+", ", seed 7", log))
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
    assert "compare runs: error: " in line and str(finished / missing) in line
    assert not (tmp_path / "table").exists()


# texts that are there, in files or on the standard input

OLDER = Path(__file__).parents[1] / "fixtures/small_models"
LINES = ["ein kleines Haus steht hier .", "das Haus ist alt , sagt er .", "hier steht ein Haus ."]
TARGETS = ["ein kleines Haus steht hier .", "das Haus ist alt , sagt sie .", "dort steht ein Haus ."]
RAW = ["ein kleines Haus steht hier.", "das Haus ist alt, sagt sie.", "dort steht ein Haus."]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reference").write_text("".join(f"{line}\n" for line in TARGETS))
    pairs = enumerate(zip(TARGETS, LINES))
    generated = (f"T-{n}\t{target}\nH-{n}\t-1\t{line[:-2]} !\n" for n, (target, line) in pairs)
    (tmp_path / "generate.txt").write_text("".join(generated))
    (tmp_path / "raw.de").write_text("".join(f"{line}\n" for line in RAW))
    return tmp_path


def output_of(capsys, *arguments):
    type_command("evaluate bleu", arguments)
    return capsys.readouterr().out


@pytest.mark.usefixtures("folder")
def test_a_text_against_itself_is_no_difference(capsys):
    arguments = ["--input", "generate.txt", "--reference", "reference", "--target-lang", "de"]
    arguments += ["--against", "generate.txt"]
    text = output_of(capsys, *arguments)
    assert text.count("p = 1.0000") == 2 and "nan" not in text
    found = json.loads(output_of(capsys, *arguments, "--json"))
    assert [(item["metric"], item["p"]) for item in found["against"]] == [("BLEU", 1), ("chrF2", 1)]
    assert all(0 < item["value"] == item["other_value"] < 100 for item in found["against"])


def test_the_language_is_what_the_reference_ends_in(folder, capsys):
    arguments = ["--input", "generate.txt", "--reference", "raw.de", "--write-hypotheses", "text"]
    assert "BLEU, detokenised" in output_of(capsys, *arguments)
    detokenised = ["ein kleines Haus steht hier!", "das Haus ist alt, sagt er!", "hier steht ein Haus!"]
    assert (folder / "text").read_text().splitlines() == detokenised


@pytest.mark.parametrize("read", ["generate.txt", "raw.de", "against.txt"])
def test_what_is_read_is_not_overwritten(read, folder, capsys):
    shutil.copy("raw.de", "against.txt")
    before = Path(read).read_text()
    with pytest.raises(SystemExit):
        arguments = ["--input", "generate.txt", "--reference", "raw.de", "--against", "against.txt"]
        output_of(capsys, *arguments, "--write-hypotheses", folder / read)
    assert "is read by this command: give another name" in capsys.readouterr().err
    assert Path(read).read_text() == before


def test_a_language_whose_tokeniser_is_missing_is_refused_before_the_text_is_read(folder, monkeypatch, capsys):
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    with pytest.raises(SystemExit) as end:
        output_of(capsys, "--input", "nowhere", "--reference", "raw.de", "--target-lang", "ja")
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and line.endswith("is not installed: pip install 'sacrebleu[ja]'")


@pytest.mark.parametrize("source", ["a file", "standard input"])
def test_plain_text_is_scored_as_it_is(source, folder, monkeypatch, capsys):
    hypotheses = ["ein kleines Haus steht hier.", "das Haus ist alt, sagt er.", "hier steht ein Haus."]
    text = "".join(f"{line}\n" for line in hypotheses)
    (folder / "text").write_text(text)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    flags = ["--input", "text"] if source == "a file" else []
    found = json.loads(output_of(capsys, *flags, "--input-format", "text", "--reference", "raw.de", "--json"))
    bleu, chrf = found["scores"]
    assert bleu["value"] == pytest.approx(sacrebleu.corpus_bleu(hypotheses, [RAW]).score)
    assert chrf["value"] == pytest.approx(sacrebleu.corpus_chrf(hypotheses, [RAW]).score)


@pytest.fixture
def decoded(folder, monkeypatch):
    """A folder of pairs, a model, and a stub of fairseq-generate that repeats ``generate.txt``."""
    package = folder / "stub/fairseq_cli"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "generate.py").write_text("import pathlib; print(pathlib.Path('generate.txt').read_text(), end='')")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    for side in ("en", "de"):
        write_split(folder / "data", f"test.en-de.{side}", [[5, 2]] * len(LINES))
    shutil.copy(OLDER / "lstm_encdec_doc.pt", folder / "model.pt")
    return ["data", "--path", "model.pt", "--out", "out"]


def command_of(folder):
    return json.loads((folder / "run.json").read_text())["command"]


@pytest.mark.parametrize("flags", [[], ["--target-lang", "de"]])
def test_references_of_any_name_are_of_the_datas_language(flags, decoded, folder, capsys):
    (folder / "raw.de").rename(folder / "references.txt")
    assert "BLEU, detokenised" in output_of(capsys, *decoded, "--reference", "references.txt", *flags)
    detokenised = ["ein kleines Haus steht hier!", "das Haus ist alt, sagt er!", "hier steht ein Haus!"]
    assert (folder / "out/hypotheses.txt").read_text().splitlines() == detokenised
    assert "--max-tokens 4000 --gen-subset test --beam 5 --remove-bpe=subword_nmt" in command_of(folder / "out")


def test_blank_references_are_refused_before_decoding(decoded, folder, capsys):
    (folder / "raw.de").write_text("ein kleines Haus steht hier.\n\ndort steht ein Haus.\n")
    told = refusal(capsys, *decoded, "--reference", "raw.de")
    assert "raw.de, line 2: blank, nothing could be compared with it: give a reference" in told
    assert not (folder / "out/generate.txt").exists()


def test_a_decoding_loads_its_data_itself_unless_told_otherwise(decoded, folder, capsys):
    (folder / "stub/fairseq_cli/generate.py").write_text(
        "import pathlib, sys; print(*sys.argv[1:], file=sys.stderr); print(pathlib.Path('generate.txt').read_text())"
    )
    output_of(capsys, *decoded, "--reference", "raw.de", "--", "--num-workers", "2")
    flags = (folder / "out/generate.log").read_text().split()
    workers = [flags[place + 1] for place, flag in enumerate(flags) if flag == "--num-workers"]
    assert workers == ["0", "2"]  # the last one wins
    assert "--num-workers 0" not in command_of(folder / "out")


def test_a_second_decoding_into_a_folder_waits_for_the_first(decoded, folder, monkeypatch, capsys):
    output_of(capsys, *decoded, "--reference", "raw.de")
    (folder / "out").rename(folder / "kept")
    (folder / "out").mkdir()
    first, told = os.open(folder / "out", os.O_RDONLY), []
    fcntl.flock(first, fcntl.LOCK_EX)

    def finish_the_first(message, **options):
        told.append(message)
        for name in ("run.json", "generate.txt"):
            (folder / "kept" / name).rename(folder / "out" / name)
        os.close(first)

    monkeypatch.setattr(decoding, "print", finish_the_first, raising=False)
    assert "BLEU, detokenised" in output_of(capsys, *decoded, "--reference", "raw.de")
    assert told == ["waiting for another decoding that writes to out"]  # and nothing is decoded again


@pytest.mark.parametrize(
    "content, told",
    [
        (
            "ein Hund bellt.\neine Katze schläft.\nder Vogel singt.\n",
            "raw.de is not the reference of .*: its line 2 is",
        ),
        ("ein kleines Haus steht hier.\n\ndort steht ein Haus.\n", "raw.de, line 2: blank, nothing could be compared"),
        ("\n\n\n", "raw.de, line 1: blank, nothing could be compared with it: give a reference"),
    ],
)
def test_references_of_another_text_are_refused(content, told, folder, capsys):
    (folder / "raw.de").write_text(content)
    assert re.search(told, refusal(capsys, "--input", "generate.txt", "--reference", "raw.de"))


def test_blank_references_of_plain_text_are_refused(folder, capsys):
    (folder / "raw.de").write_text("\n\n\n")
    arguments = ["--input", "reference", "--input-format", "text", "--reference", "raw.de"]
    assert "raw.de, line 1: blank" in refusal(capsys, *arguments)


def test_another_language_than_that_of_the_data_is_refused(decoded, folder, capsys):
    told = refusal(capsys, *decoded, "--reference", "raw.de", "--target-lang", "fr")
    assert "--target-lang fr: model.pt translates into de: leave it out" in told and not (folder / "out").exists()


@pytest.mark.parametrize(
    "content, told",
    [
        (
            OLDER / "lstm_lm_doc.pt",
            "model.pt was trained for --task stateful_lm: give an encoder-",
        ),
        (OLDER / "data/lm/dict.txt", "model.pt is no checkpoint or was cut short"),
    ],
)
def test_what_cannot_decode_is_refused_before_earlier_scores_are_removed(content, told, decoded, folder, capsys):
    output_of(capsys, *decoded, "--reference", "raw.de")
    before = (folder / "out/scores.txt").read_text()
    shutil.copy(content, folder / "model.pt")
    assert told in refusal(capsys, *decoded, "--reference", "raw.de")
    assert (folder / "out/scores.txt").read_text() == before


def test_missing_binaries_are_told_in_a_line(decoded, folder, capsys):
    (folder / "data/test.en-de.de.bin").unlink()
    told = refusal(capsys, *decoded, "--reference", "raw.de")
    assert "data lacks binaries of test.en-de.de: prepare it again" in told


def test_what_fairseq_refuses_is_told_in_a_line(decoded, folder, capsys):
    line = "error: model.pt is damaged: take another"
    (folder / "stub/fairseq_cli/generate.py").write_text(f"import sys; sys.exit('{line}')")
    assert "error: model.pt is damaged: take another (log: out/generate.log)" in refusal(
        capsys, *decoded, "--reference", "raw.de"
    )


def refusal(capsys, *arguments):
    """The line of a command that ends with status 2."""
    with pytest.raises(SystemExit) as error:
        type_command("evaluate bleu", arguments)
    shown = capsys.readouterr()
    assert error.value.code == 2 and shown.out == ""
    return shown.err.splitlines()[-1]
