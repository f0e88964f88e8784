"""ROUGE of a trained model and of texts: fairseq-generate --scoring rouge and evaluate rouge."""

import html
import json
import re
import shutil
from statistics import fmean

import fairseq_cli.generate
import pytest
import torch
from binarised_data import copy_data
from commands import load, succeed
from fairseq.data import Dictionary
from rouge_score.rouge_scorer import RougeScorer
from translation_commands import FAIRSEQ_FLAGS

from fairseq_plugins.metrics.rouge import RougeSettings, score_corpus
from fairseq_plugins.models.checkpoints import dictionary_fingerprint

FORWARDED = ["--", "--cpu", "--scoring", "rouge"]
DECODES = "== decode test"
METRICS = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}
# the words of the tiny language as those of headlines: with endings to stem, subwords to join, an escape to undo
HEADLINE_WORDS = {
    **dict(xa="price", xb="prices", xc="priced", xd="rise", xe="rises", xf="rising"),
    **dict(xg="kill", xh="kill@@", xi="ing", xj="&apos;s"),
}


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


@pytest.fixture(scope="module")
def headlines(pair_data, pairs, translator, tmp_path_factory):
    """Data, a model and a raw reference, in a folder with spaces: those of a translation, with other target words.

    The model keeps no digest of its dictionaries, as models of earlier versions; so it takes the other words.
    """
    folder = tmp_path_factory.mktemp("headlines") / "of a newspaper"
    data = copy_data(pair_data, folder / "data bin")
    (data / "digests.json").unlink(missing_ok=True)
    rename = {"pattern": r"\bx[a-j]\b", "repl": lambda word: HEADLINE_WORDS[word[0]]}
    dictionary = data / "dict.tgt.txt"
    dictionary.write_text(re.sub(string=dictionary.read_text(), **rename))
    titles = re.sub(string=(pairs / "test.tgt").read_text(), **rename)
    (folder / "test.title").write_text(html.unescape(without_subwords(titles)))
    checkpoint = load(translator / "checkpoint_best.pt")
    digest = dictionary_fingerprint(Dictionary.load(str(dictionary))).encode()
    checkpoint["model"]["decoder.vocabulary.digest"] = torch.tensor(list(digest), dtype=torch.float32)
    bias = checkpoint["model"]["decoder.output.projection.bias"]  # a model that makes no mistake has one score
    bias += 6 * torch.randn(bias.shape, generator=torch.Generator().manual_seed(1))
    torch.save(checkpoint, folder / "best model.pt")
    return folder


@pytest.fixture(scope="module")
def asked(headlines):
    """The command's arguments but for ``--out`` and fairseq's."""
    return [headlines / "data bin", "--path", headlines / "best model.pt", "--reference", headlines / "test.title"]


@pytest.fixture(scope="module")
def evaluated(asked, tmp_path_factory):
    """The output folder of an undisturbed run, with what it printed."""
    out = tmp_path_factory.mktemp("evaluated") / "my results"
    result = succeed("fairseq_plugins", "evaluate", "rouge", *asked, "--out", out, *FORWARDED)
    assert DECODES in result.stderr
    (out / "printed.txt").write_text(result.stdout)
    return out


@pytest.fixture
def copy(evaluated, tmp_path):
    """A copy of that folder for one test."""
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


def test_flags_of_the_score_change_fairseqs_score_and_its_signature(evaluated, headlines, run_here):
    asked = [headlines / "data bin", *FAIRSEQ_FLAGS, "--path", headlines / "best model.pt", "--beam", 5, "--remove-bpe"]
    flags = ["--scoring", "rouge", "--rouge-max-bytes", 25, "--rouge-stemming", "off"]
    (last_line,) = re.findall("^Generate test with .*", run_here(fairseq_cli.generate, *asked, *flags), re.M)
    whole = texts(evaluated / "generate.txt")
    cut = [[line[:25] for line in lines] for lines in whole]
    assert scores_of_fairseq(last_line) == as_printed(expected(*cut, stemming=False))
    assert expected(*cut, stemming=False) not in (expected(*cut), expected(*whole, stemming=False))
    assert "|stem:off|limit:25b|" in last_line


def test_a_bad_flag_of_the_score_is_told_before_anything_is_decoded(headlines, run_here, capsys):
    asked = [headlines / "data bin", *FAIRSEQ_FLAGS, "--path", headlines / "best model.pt"]
    with pytest.raises(ValueError, match="a limit of -1 bytes: give 0 for no limit, or more"):
        run_here(fairseq_cli.generate, *asked, "--scoring", "rouge", "--rouge-max-bytes", "-1")
    assert "H-" not in capsys.readouterr().out


# the command, from a model


def test_subword_marks_are_refused_and_no_earlier_score_is_left(asked, copy, refuse):
    (copy / "generate.txt").write_text(re.sub(r"\bkill", "kill@@ ", (copy / "generate.txt").read_text()))
    assert "--remove-bpe=subword_nmt" in refuse("evaluate rouge", *asked, "--out", copy, *FORWARDED)
    assert not (copy / "rouge.txt").exists() and not (copy / "hypotheses.txt").exists()


def test_references_of_another_script_are_told_before_earlier_results_are_lost(asked, copy, refuse, tmp_path):
    (tmp_path / "test.title").write_text("\u65b0\u95fb\n" * len(asked[-1].read_text().splitlines()))
    given = [*asked[:-1], tmp_path / "test.title", "--out", copy, *FORWARDED]
    assert "take the unicode tokeniser" in refuse("evaluate rouge", *given)
    assert (copy / "rouge.txt").exists() and (copy / "hypotheses.txt").exists()


# texts that are there, in files or on the standard input

TEXTS = {
    "my hypotheses": ["oil prices rise", "police killed the gunman", "rain in spain"],
    "first reference": ["prices of oil rising", "the gunman was killed", "sun"],
    "second reference": ["oil price rises again", "police kill a man", "it rains in spain"],
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, lines in TEXTS.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    return tmp_path


def expected_scores(hypotheses, *references):
    return {title: pytest.approx(scores) for title, scores in expected(hypotheses, *references).items()}


@pytest.fixture
def scored(printed_by):
    """``scored(*arguments)``: the scores of the command, and its signature."""

    def scored(*arguments, typed=""):
        found = json.loads(printed_by("evaluate rouge", *arguments, "--json", typed=typed))
        scores = {score["metric"]: (score["f1"], score["recall"], score["precision"]) for score in found["scores"]}
        return scores, found["signature"]

    return scored


@pytest.mark.usefixtures("folder")
def test_texts_with_several_references_score_as_rouge_score_says(scored):
    references = ["--reference", "first reference", "--reference", "second reference"]
    scores, signature = scored("--input", "my hypotheses", "--input-format", "text", *references)
    assert scores == expected_scores(*TEXTS.values()) and signature.startswith("#:2|")


@pytest.mark.parametrize(
    "flags, settings",
    [
        ([], RougeSettings()),
        (["--tokenizer", "unicode", "--stemming", "off"], RougeSettings(tokenizer="unicode", stemming="off")),
        (["--max-words", "2"], RougeSettings(max_words=2)),
        (["--max-bytes", "9"], RougeSettings(max_bytes=9)),
    ],
)
def test_flags_are_the_settings_of_the_score(flags, settings, folder, scored):
    hypotheses, references = ["Öl prices rise", "killed the gunman"], ["Äl price rising", "the gunman killed"]
    (folder / "a").write_text("".join(f"{line}\n" for line in hypotheses))
    (folder / "b").write_text("".join(f"{line}\n" for line in references))
    scores, signature = scored(*flags, "--input", "a", "--input-format", "text", "--reference", "b")
    found = score_corpus(hypotheses, [[reference] for reference in references], settings)
    assert scores == {one.metric: (one.f1, one.recall, one.precision) for one in found}
    assert signature == settings.signature(num_references=1)


def test_output_of_fairseq_in_shards_is_one_text(folder, scored):
    """Each shard has the sentences of its part, in the order of their lengths."""
    shards = {"a": [2, 0], "b": [1]}
    for name, numbers in shards.items():
        pairs = [(n, TEXTS["first reference"][n], TEXTS["my hypotheses"][n]) for n in numbers]
        lines = [f"T-{n}\t{target}\nH-{n}\t-1\t{hypothesis}\n" for n, target, hypothesis in pairs]
        (folder / name).write_text("".join(lines))
    scores, _ = scored("--input", "a", "b", "--reference", "first reference")
    assert scores == expected_scores(TEXTS["my hypotheses"], TEXTS["first reference"])


def test_one_reference_is_that_of_the_decoded_text(folder, scored, refuse):
    rows = zip(TEXTS["first reference"], TEXTS["my hypotheses"])
    (folder / "a").write_text("".join(f"T-{n}\t{target}\nH-{n}\t-1\t{text}\n" for n, (target, text) in enumerate(rows)))
    references = ["--reference", "second reference"]
    told = "second reference is not the reference of the text that a was decoded from: its line"
    assert told in refuse("evaluate rouge", "--input", "a", *references)
    assert scored("--input", "a", *references, "--reference", "first reference")[1].startswith("#:2|")
