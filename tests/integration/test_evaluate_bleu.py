"""BLEU by ``evaluate bleu``, of a split that it decodes and of texts, and the table of ``compare runs``."""

import fcntl
import json
import os
import re
import shutil
from functools import partial

import pytest
import sacrebleu
from binarised_data import write_split
from commands import succeed
from paths import SMALL_MODELS
from sacrebleu.tokenizers import tokenizer_ja_mecab
from translation_commands import EPOCHS

from fairseq_plugins.evaluation import decoding

DECODES = "== decode test"
PRINTS = "print(open('generate.txt').read(), end='')"


def bleu(text):
    return float(re.search(r"BLEU, detokenised \(sacreBLEU\) +([\d.]+) \+-", text).group(1))


@pytest.fixture(scope="module")
def asked(pair_data, translator, pairs):
    """The command's arguments but the folder of its output."""
    return [pair_data, "--path", translator / "checkpoint_best.pt", "--reference", pairs / "test.tgt", "--out"]


@pytest.fixture(scope="module")
def evaluated(asked, tmp_path_factory):
    """The output folder, with what was printed."""
    out = tmp_path_factory.mktemp("evaluated") / "my results"
    result = succeed("fairseq_plugins", "evaluate", "bleu", *asked, out, "--cpu")
    assert DECODES in result.stderr
    (out / "printed.txt").write_text(result.stdout)
    return out


@pytest.fixture
def score(printed_by):
    """``score(*arguments)``: what the command prints."""
    return partial(printed_by, "evaluate bleu")


@pytest.fixture
def fairseq_generate(stand_in):
    """``fairseq_generate(code)``: Python that runs in place of fairseq-generate."""
    return partial(stand_in, "generate")


def test_a_split_is_decoded_once_and_scored(evaluated, asked, pairs, call, tmp_path):
    printed = (evaluated / "printed.txt").read_text()
    assert bleu(printed) > 80 and "tok:13a" in printed and "tok:none" in printed
    num_lines = len((pairs / "test.tgt").read_text().splitlines())
    assert len((evaluated / "hypotheses.txt").read_text().splitlines()) == num_lines
    assert (evaluated / "scores.txt").read_text() == printed
    copy = shutil.copytree(evaluated, tmp_path / "copy of results")
    status, again, told = call("evaluate bleu", *asked, copy, "--", "--cpu")
    assert status == 0 and again == printed and DECODES not in told


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


@pytest.fixture
def compare(printed_by, pair_data, pairs):
    """``compare(*flags)``: what the command prints."""
    return partial(printed_by, "compare runs", pair_data, "--metric", "bleu", "--reference", pairs / "test.tgt")


def test_a_table_a_file_and_a_picture_compare_the_runs(finished, evaluated, compare, tmp_path):
    out = tmp_path / "table"
    again = shutil.copytree(finished, tmp_path / "again", ignore=shutil.ignore_patterns("*.pt"))
    log = (again / "train.log").read_text()
    (again / "train.log").write_text(re.sub(r", seed \d+", ", seed 7", log))
    runs = [f"one={finished}", f"two={finished}", f"one={again}"]
    printed = compare("--path", *runs, "--out", out)
    value = f"{bleu((evaluated / 'scores.txt').read_text()):.2f}"
    table = (out / "table.md").read_text()
    one, mean, two = (re.findall(rf"^\| {name} +\|.*$", table, re.M) for name in ("one", "one, mean", "two"))
    assert len(one) == 2 and len(mean) == len(two) == 1
    assert f" {value} +- " in one[0] and f" {value} +- " in two[0] and f" {value} |" in mean[0]
    assert "tok:13a" in table and "tok:none" in table and two[0] in printed
    figures = json.loads((out / "runs.json").read_text())["runs"]
    assert [run["name"] for run in figures] == ["one", "two", "one"]
    assert all(f"{run['scores'][0]['value']:.2f}" == value and run["epochs"] == EPOCHS for run in figures)
    assert all(len(run["valid_curve"]) == EPOCHS and run["parameters"] > 1000 for run in figures)
    assert (out / "learning_curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_without_its_checkpoint_has_the_same_figures(finished, compare, tmp_path):
    gone = shutil.copytree(finished, tmp_path / "gone", ignore=shutil.ignore_patterns("*.pt"))
    runs = [f"whole={finished}", f"gone={gone}"]
    out = tmp_path / "table"
    printed = compare("--path", *runs, "--baseline", "whole", "--out", out)
    assert re.findall("By log and text alone, without the checkpoint: (.*)", printed) == ["gone (seed 1)."]
    whole, gone = json.loads((out / "runs.json").read_text())["runs"]
    assert (whole.pop("checkpoint"), gone.pop("checkpoint")) == ("checkpoint_best.pt", None)
    assert (whole.pop("name"), gone.pop("name")) == ("whole", "gone") and whole == gone


# texts that are there, in files or on the standard input

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


def test_a_text_is_compared_with_a_baseline(folder, score):
    (folder / "baseline").mkdir()
    worse = (folder / "generate.txt").read_text().replace("steht", "ist")
    (folder / "baseline/generate.txt").write_text(worse)
    flags = ["--reference", "raw.de", "--json", "--input"]
    own, other = (json.loads(score(*flags, f"{name}generate.txt"))["scores"] for name in ("", "baseline/"))
    for baseline, scores in (("baseline", other), ("generate.txt", own)):
        found = json.loads(score(*flags, "generate.txt", "--against", baseline))["against"]
        assert [item["metric"] for item in found] == ["BLEU", "chrF"]
        assert [item["value"] for item in found] == [item["value"] for item in own[:2]]
        assert [item["other_value"] for item in found] == [item["value"] for item in scores[:2]]
        assert all((item["p"] == 1) == (scores == own) for item in found)


@pytest.mark.usefixtures("folder")
def test_a_language_whose_tokeniser_is_missing_is_refused_before_the_text_is_read(monkeypatch, refuse):
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    line = refuse("evaluate bleu", "--input", "nowhere", "--reference", "raw.de", "--target-lang", "ja")
    assert line.endswith("is not installed: pip install 'sacrebleu[ja]'")


@pytest.mark.parametrize("source", ["a file", "standard input"])
def test_plain_text_is_scored_as_it_is(source, folder, score):
    hypotheses = ["ein kleines Haus steht hier.", "das Haus ist alt, sagt er.", "hier steht ein Haus."]
    text = "".join(f"{line}\n" for line in hypotheses)
    (folder / "text").write_text(text)
    flags = ["--input", "text"] if source == "a file" else []
    found = json.loads(score(*flags, "--input-format", "text", "--reference", "raw.de", "--json", typed=text))
    bleu, chrf = found["scores"]
    assert bleu["value"] == pytest.approx(sacrebleu.corpus_bleu(hypotheses, [RAW]).score)
    assert chrf["value"] == pytest.approx(sacrebleu.corpus_chrf(hypotheses, [RAW]).score)


@pytest.fixture
def decoded(folder, fairseq_generate):
    """A folder of pairs and a model; fairseq-generate repeats ``generate.txt``."""
    fairseq_generate(PRINTS)
    for side in ("en", "de"):
        write_split(folder / "data", f"test.en-de.{side}", [[5, 2]] * len(LINES))
    shutil.copy(SMALL_MODELS / "lstm_encdec_doc.pt", folder / "model.pt")
    return ["data", "--path", "model.pt", "--out", "out"]


def command_of(folder):
    return json.loads((folder / "run.json").read_text())["command"]


def test_references_of_any_name_are_of_the_datas_language(decoded, folder, score):
    (folder / "raw.de").rename(folder / "references.txt")
    assert "BLEU, detokenised" in score(*decoded, "--reference", "references.txt")
    detokenised = ["ein kleines Haus steht hier!", "das Haus ist alt, sagt er!", "hier steht ein Haus!"]
    assert (folder / "out/hypotheses.txt").read_text().splitlines() == detokenised
    assert "--max-tokens 4000 --gen-subset test --beam 5 --remove-bpe=subword_nmt" in command_of(folder / "out")


@pytest.mark.parametrize(
    "case, flags, signature",
    [("kept", [], "c:mixed"), ("kept", ["--lowercase"], "c:lc"), ("lower tokens", [], "c:lc")],
)
def test_case_counts_where_the_text_has_kept_it(case, flags, signature, decoded, folder, score):
    (folder / "data/text.json").write_text(json.dumps({"tokenizer": "moses", "case": case}))
    (folder / "raw.de").write_text("".join(f"{line.upper()}\n" for line in RAW))
    printed = score(*decoded, "--reference", "raw.de", *flags)
    assert f"|{signature}|" in printed and (bleu(printed) > 50) == (signature == "c:lc")


def test_a_decoding_loads_its_data_itself_unless_told_otherwise(decoded, folder, score, fairseq_generate):
    fairseq_generate(f"import sys; print(*sys.argv[1:], file=sys.stderr); {PRINTS}")
    score(*decoded, "--reference", "raw.de", "--", "--num-workers", "2")
    flags = (folder / "out/generate.log").read_text().split()
    workers = [flags[place + 1] for place, flag in enumerate(flags) if flag == "--num-workers"]
    assert workers == ["0", "2"]  # the last one wins
    assert "--num-workers 0" not in command_of(folder / "out")


def test_a_second_decoding_into_a_folder_waits_for_the_first(decoded, folder, monkeypatch, score):
    score(*decoded, "--reference", "raw.de")
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
    assert "BLEU, detokenised" in score(*decoded, "--reference", "raw.de")
    assert told == ["waiting for another decoding that writes to out"]  # and nothing is decoded again


def test_another_language_than_that_of_the_data_is_refused(decoded, folder, refuse):
    told = refuse("evaluate bleu", *decoded, "--reference", "raw.de", "--target-lang", "fr")
    assert "--target-lang fr: model.pt translates into de: leave it out" in told and not (folder / "out").exists()


def test_missing_binaries_are_told_in_a_line(decoded, folder, refuse):
    (folder / "data/test.en-de.de.bin").unlink()
    told = refuse("evaluate bleu", *decoded, "--reference", "raw.de")
    assert "data lacks binaries of test.en-de.de: prepare it again" in told


def test_what_fairseq_refuses_is_told_in_a_line(decoded, refuse, fairseq_generate):
    told = "model.pt is damaged: take another"
    fairseq_generate(f"import sys; sys.exit('error: {told}')")
    line = refuse("evaluate bleu", *decoded, "--reference", "raw.de")
    assert line == f"{told} (log: out/generate.log)"
