"""From a trained model to ROUGE: fairseq-generate --scoring rouge and evaluate_rouge."""

import html
import json
import re
import shutil
from functools import partial
from statistics import fmean

import pytest
import torch
from commands import ENVIRONMENT, load, run
from rouge_score.rouge_scorer import RougeScorer
from translation_commands import FAIRSEQ_FLAGS, SIZES, parse

pytestmark = pytest.mark.slow

COMMAND = "fairseq_plugins.cli.evaluate_rouge"
evaluate_rouge = partial(run, COMMAND)
DECODES = "== decode test"
METRICS = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}
# the words of the tiny language as those of headlines: with endings to stem, subwords to join, an escape to undo
HEADLINE_WORDS = {
    **dict(xa="price", xb="prices", xc="priced", xd="rise", xe="rises", xf="rising"),
    **dict(xg="kill", xh="kill@@", xi="ing", xj="&apos;s"),
}
HALF = """
import os, pathlib, sys
print(*pathlib.Path(os.environ["RECORDED"]).read_text().splitlines(keepends=True)[:60], sep="", end="")
sys.exit("out of memory")
"""


def without_subwords(text):
    return re.sub("@@( |$)", "", text, flags=re.M)


def texts(path):
    """Hypotheses and references that fairseq-generate wrote, as they read without escapes, in the order of the text."""
    output = html.unescape(path.read_text())
    hypotheses = re.findall(r"^H-(\d+)\t\S+\t(.*)$", output, re.M)
    references = re.findall(r"^T-(\d+)\t(.*)$", output, re.M)
    return [[text for _, text in sorted(lines, key=lambda line: int(line[0]))] for lines in (hypotheses, references)]


def expected(hypotheses, *references, stemming=True):
    """(F1, recall, precision) of each metric, by the package alone."""
    scorer = RougeScorer(list(METRICS), use_stemmer=stemming)
    scores = [scorer.score_multi(lines, hypothesis) for hypothesis, *lines in zip(hypotheses, *references)]
    return {
        title: tuple(
            100 * fmean(getattr(score[metric], kind) for score in scores)
            for kind in ("fmeasure", "recall", "precision")
        )
        for metric, title in METRICS.items()
    }


def as_printed(scores):
    return {title: tuple(f"{value:.2f}" for value in values) for title, values in scores.items()}


def scores_of_fairseq(output):
    return {
        title: (f1, recall, precision)
        for title, f1, precision, recall in re.findall(r"(ROUGE-\w) F1 ([\d.]+) \(P ([\d.]+), R ([\d.]+)\)", output)
    }


def scores_of_the_command(printed):
    lines = re.findall(r"^(ROUGE-\w)  F1 +([\d.]+) \+- [\d.]+  recall +([\d.]+)  precision +([\d.]+)$", printed, re.M)
    return {title: tuple(values) for title, *values in lines}


def subword_counts(path):
    sentences = parse(path.read_text()).values()
    return [len(sentence.hypotheses[0].positional_scores) - 1 for sentence in sentences]


@pytest.fixture(scope="module")
def headlines(pair_data, pairs, translator, tmp_path_factory):
    """Data, a model and a raw reference, in a folder with spaces: those of a translation, with other target words.

    The model keeps no digest of its dictionaries, as models of earlier versions; so it takes the other words.
    """
    folder = tmp_path_factory.mktemp("headlines") / "of a newspaper"
    data = shutil.copytree(pair_data, folder / "data bin", ignore=shutil.ignore_patterns("digests.json"))
    (data / "digests.json").unlink(missing_ok=True)
    rename = {"pattern": r"\bx[a-j]\b", "repl": lambda word: HEADLINE_WORDS[word[0]]}
    dictionary = data / "dict.tgt.txt"
    dictionary.write_text(re.sub(string=dictionary.read_text(), **rename))
    titles = re.sub(string=(pairs / "test.tgt").read_text(), **rename)
    (folder / "test.title").write_text(html.unescape(without_subwords(titles)))
    checkpoint = load(translator / "checkpoint_best.pt")
    weights = checkpoint["model"].items()
    checkpoint["model"] = {name: weight for name, weight in weights if ".vocabulary." not in name}
    assert len(checkpoint["model"]) < len(weights)
    bias = checkpoint["model"]["decoder.output.projection.bias"]  # a model that makes no mistake has one score
    bias += 6 * torch.randn(bias.shape, generator=torch.Generator().manual_seed(1))
    torch.save(checkpoint, folder / "best model.pt")
    return folder


@pytest.fixture(scope="module")
def request_of(headlines):
    """``request_of(out, **changes)``: the script's arguments."""

    def request_of(out, **changes):
        asked = dict(checkpoint=headlines / "best model.pt", reference=headlines / "test.title")
        asked = {**asked, **changes}
        flags = ["--path", asked["checkpoint"], "--reference", asked["reference"], "--out", out]
        return [headlines / "data bin", *flags]

    return request_of


@pytest.fixture(scope="module")
def evaluated(request_of, tmp_path_factory):
    """What an undisturbed run wrote, with what it printed."""
    out = tmp_path_factory.mktemp("evaluated") / "my results"
    result = evaluate_rouge(*request_of(out), "--", "--cpu", "--scoring", "rouge")
    assert result.returncode == 0, result.stderr[-3000:]
    assert DECODES in result.stderr
    (out / "printed.txt").write_text(result.stdout)
    return out


@pytest.fixture
def copy(evaluated, tmp_path):
    """What that run wrote, for one test's use."""
    return shutil.copytree(evaluated, tmp_path / "copy of results")


# the scorer of fairseq


def test_fairseq_and_the_command_print_what_rouge_score_says(evaluated, headlines):
    hypotheses, references = texts(evaluated / "generate.txt")
    last_line = (evaluated / "generate.txt").read_text().splitlines()[-1]
    assert last_line.startswith("Generate test with beam=5: ROUGE-1 F1 ")
    assert scores_of_fairseq(last_line) == as_printed(expected(hypotheses, references))
    printed = (evaluated / "printed.txt").read_text()
    raw_references = (headlines / "test.title").read_text().splitlines()
    assert scores_of_the_command(printed) == as_printed(expected(hypotheses, raw_references))
    signature = printed.splitlines()[-1]
    assert (
        last_line.endswith(f" {signature.replace('ref:raw', 'ref:dictionary')}")
        and "stem:on|limit:none|v:rouge-score-" in signature
    )
    assert (evaluated / "rouge.txt").read_text() == printed
    assert (evaluated / "hypotheses.txt").read_text() == "".join(f"{line}\n" for line in hypotheses)


def test_flags_of_the_score_change_fairseqs_score_and_its_signature(evaluated, headlines):
    asked = [headlines / "data bin", *FAIRSEQ_FLAGS, "--path", headlines / "best model.pt", "--beam", 5, "--remove-bpe"]
    flags = ["--scoring", "rouge", "--rouge-max-bytes", 25, "--rouge-stemming", "off"]
    result = run("fairseq_cli.generate", *asked, *flags)
    assert result.returncode == 0, result.stderr[-3000:]
    last_line = result.stdout.splitlines()[-1]
    whole = texts(evaluated / "generate.txt")
    cut = [[line[:25] for line in lines] for lines in whole]
    assert scores_of_fairseq(last_line) == as_printed(expected(*cut, stemming=False))
    assert expected(*cut, stemming=False) not in (expected(*cut), expected(*whole, stemming=False))
    assert "|stem:off|limit:25b|" in last_line


@pytest.mark.parametrize(
    "flags, told",
    [
        (["--rouge-max-bytes", "-1"], "ValueError: a limit of -1 bytes: give 0 for no limit, or more"),
        (["--rouge-stemming", "maybe"], "argument --rouge-stemming: invalid choice: 'maybe' (choose from"),
    ],
)
def test_a_bad_flag_of_the_score_ends_with_a_line_that_names_it_before_anything_is_decoded(flags, told, headlines):
    asked = [headlines / "data bin", *FAIRSEQ_FLAGS, "--path", headlines / "best model.pt"]
    result = run("fairseq_cli.generate", *asked, "--scoring", "rouge", *flags)
    assert result.returncode != 0 and "H-" not in result.stdout
    assert told in result.stderr.splitlines()[-1]


# the command, from a model


@pytest.mark.parametrize(
    "flags, told",
    [
        (["--max-bytes", "-1"], "a limit of -1 bytes: give 0 for no limit"),
        (["--stemming", "maybe"], "argument --stemming: invalid choice: 'maybe'"),
        (["--lenpen", "3"], "--lenpen: flags of fairseq-generate come after --"),
    ],
)
def test_a_flag_that_the_score_does_not_take_is_refused_before_the_decoding(flags, told, request_of, tmp_path):
    result = evaluate_rouge(*request_of(tmp_path / "out"), *flags)
    assert result.returncode == 2 and result.stdout == "" and told in result.stderr.splitlines()[-1]
    assert DECODES not in result.stderr and not (tmp_path / "out").exists()


def test_what_is_decoded_stays(evaluated, request_of, copy):
    before = (copy / "generate.txt").stat().st_mtime_ns
    (copy / "rouge.txt").unlink()
    again = evaluate_rouge(*request_of(copy), "--json", "--", "--cpu", "--scoring", "rouge")
    assert again.returncode == 0 and DECODES not in again.stderr, again.stderr
    assert (copy / "rouge.txt").read_text() == (evaluated / "rouge.txt").read_text()
    found = json.loads(again.stdout)
    assert "evaluate_rouge" in found["command"] and found["signature"] in (copy / "rouge.txt").read_text()
    assert (copy / "generate.txt").stat().st_mtime_ns == before


def test_another_beam_is_decoded_again(request_of, copy):
    before = (copy / "generate.txt").stat().st_mtime_ns
    other = evaluate_rouge(
        *request_of(copy), "--", "--cpu", "--scoring", "rouge", environment={**ENVIRONMENT, "BEAM": "1"}
    )
    assert other.returncode == 0 and DECODES in other.stderr, other.stderr
    assert "Generate test with beam=1: ROUGE-1" in (copy / "generate.txt").read_text()
    assert (copy / "generate.txt").stat().st_mtime_ns > before
    hypotheses, references = texts(copy / "generate.txt")
    assert scores_of_the_command(other.stdout) == as_printed(expected(hypotheses, references))


def test_hypotheses_keep_the_length_asked_for_and_lenpen_decides_within_it(evaluated, request_of, copy):
    unbounded = subword_counts(evaluated / "generate.txt")
    assert min(unbounded) < 3 and max(unbounded) > 6
    bounds = ["--min-len", 3, "--max-len-b", 6, "--max-len-a", 0]
    totals = []
    for preference in (-20, 20):
        result = evaluate_rouge(*request_of(copy), "--", "--cpu", *bounds, "--lenpen", preference)
        assert result.returncode == 0 and DECODES in result.stderr, result.stderr
        counts = subword_counts(copy / "generate.txt")
        assert len(counts) == len(unbounded) and min(counts) == 3 and max(counts) == 6
        totals.append(sum(counts))
    for_short, for_long = totals
    assert for_short < for_long


@pytest.mark.parametrize("started", ["in a new folder", "where an earlier run ended"])
def test_an_aborted_decode_leaves_no_score(started, evaluated, request_of, copy, tmp_path):
    out = copy if started == "where an earlier run ended" else tmp_path / "out"
    package = tmp_path / "stub/fairseq_cli"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "generate.py").write_text(HALF)
    recorded = {"PYTHONPATH": str(package.parent), "RECORDED": str(evaluated / "generate.txt"), "BEAM": "2"}
    environment = {**ENVIRONMENT, **recorded}
    result = evaluate_rouge(*request_of(out), environment=environment)
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr.splitlines() == [f"{DECODES} (log: {out}/generate.log)", "out of memory"]
    assert not (out / "rouge.txt").exists() and not (out / "generate.txt.tmp").exists()
    if out == copy:
        assert (out / "generate.txt").read_bytes() == (evaluated / "generate.txt").read_bytes()
    else:
        assert not (out / "generate.txt").exists()


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"checkpoint": "nowhere.pt"}, "nowhere.pt does not exist: give a checkpoint, .*"),
        ({"checkpoint": "here.pt:nowhere.pt"}, "nowhere.pt does not exist: give a checkpoint, .*"),
        ({"reference": "nowhere.title"}, "nowhere.title does not exist: give a text file"),
    ],
)
def test_what_is_missing_is_named_before_anything_is_decoded(changes, told, request_of, tmp_path):
    (tmp_path / "here.pt").touch()
    out = tmp_path / "out"
    result = evaluate_rouge(*request_of(out, **changes), cwd=tmp_path)
    assert result.returncode == 2 and result.stdout == ""
    assert re.fullmatch(rf"python -m {COMMAND}: error: {told}\n", result.stderr), result.stderr
    assert not out.exists()


def without_last_line(text):
    return "".join(text.splitlines(keepends=True)[:-1])


def with_subword_marks(text):
    return re.sub(r"\bkill", "kill@@ ", text)


@pytest.mark.parametrize(
    "file, damage, told, is_kept",
    [
        ("test.title", without_last_line, f"line {SIZES['test']} has no counterpart", True),
        (
            "generate.txt",
            with_subword_marks,
            "subword mark @@ left over: generate with --remove-bpe=subword_nmt",
            False,
        ),
    ],
)
def test_a_refused_score_is_one_line_and_an_earlier_one_is_kept_where_the_reference_is_wrong(
    file, damage, told, is_kept, headlines, request_of, copy
):
    reference = shutil.copy(headlines / "test.title", copy)
    (copy / file).write_text(damage((copy / file).read_text()))
    result = evaluate_rouge(*request_of(copy, reference=reference), "--", "--cpu", "--scoring", "rouge")
    assert result.returncode == 2 and result.stdout == ""
    assert re.fullmatch(f".*error: .*{told}\n", result.stderr), result.stderr
    assert [(copy / name).exists() for name in ("rouge.txt", "hypotheses.txt")] == [is_kept] * 2
