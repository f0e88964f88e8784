"""N-best lists rescored from the command line."""

import json
import re
import shutil
from functools import partial
from pathlib import Path

import fairseq_cli.generate
import fairseq_cli.train
import pytest
from binarised_data import copy_data
from commands import MODEL_FLAGS, preprocess
from paths import SMALL_MODELS
from translation_commands import FAIRSEQ_FLAGS

from fairseq_plugins.files import file_digest
from fairseq_plugins.metrics import corpus


@pytest.fixture
def rescore(call):
    """``rescore(*arguments)``: exit status, what is printed, what is told."""
    return partial(call, "rescore", "--cpu")


@pytest.fixture
def rescored(printed_by):
    """``rescored(*arguments)``: what is printed."""
    return partial(printed_by, "rescore", "--cpu")


@pytest.fixture(scope="module")
def lines(text):
    """Lines of the language model's text, of three words or more."""
    found = [line for line in (text / "valid.txt").read_text().splitlines() if len(line.split()) > 2]
    return found[:40]


@pytest.fixture
def disturbed(data, lines, tmp_path):
    """Lists of lines and of rare words in their place, which the decoder likes better in one of two; the references."""
    rare = [line.split()[0] for line in (data / "dict.txt").read_text().splitlines()[-10:]]
    texts = [(" ".join(rare[place % 10] for place, _ in enumerate(line.split())), line) for line in lines]
    candidates = [
        f"{number}\t{score}\t{text}"
        for number, pair in enumerate(texts)
        for score, text in zip((-1.0, -1.5), pair if number % 2 else reversed(pair))
    ]
    (tmp_path / "lists.txt").write_text("".join(f"{line}\n" for line in candidates))
    (tmp_path / "references.txt").write_text("".join(f"{line}\n" for line in lines))
    return ["--input", tmp_path / "lists.txt", "--input-format", "tab"], tmp_path / "references.txt"


def test_a_language_model_finds_the_likely_words(data, trained, disturbed, lines, rescore, rescored, tmp_path):
    model = [data, "--path", trained / "checkpoint_best.pt"]
    given, reference = disturbed
    weights = tmp_path / "weights.json"
    status, printed, told = rescore(*model, *given, "--reference", reference, "--tune", weights)
    assert status == 0 and told.count("\n") == 1 and "checkpoint_best.pt does not know 13.0% of the" in told
    assert "if that is more than DATA lacks, give tokens of DATA" in told
    before, after = map(float, re.search(r"BLEU *\| *([\d.]+) \| *([\d.]+)", printed).groups())
    assert before < 70 < 90 < after and "bootstrap" not in printed
    found = json.loads(weights.read_text())
    assert found["metric"] == "bleu" and found["weights"][str(trained / "checkpoint_best.pt")] > 0
    assert sum(map(abs, found["weights"].values())) == pytest.approx(1)

    moved = tmp_path / "moved.pt"
    shutil.copyfile(trained / "checkpoint_best.pt", moved)
    chosen = rescored(data, "--path", moved, *given, "--weights", weights).splitlines()
    assert len(chosen) == len(lines)
    assert sum(one == line for one, line in zip(chosen, lines)) > 0.9 * len(lines)
    printed = rescored(*model, *given, "--weights", weights, "--output", "lists")
    reordered = [line.split("\t") for line in printed.splitlines()]
    assert [text for _, _, text in reordered[::2]] == chosen and len(reordered) == 2 * len(lines)
    assert all(float(one[1]) >= float(two[1]) for one, two in zip(reordered[::2], reordered[1::2]))
    scores = ["--weights", weights, "--output", "scores", "--reference", reference]
    printed = rescored(*model, *given, *scores)
    assert "p (paired bootstrap, two-sided)" in printed and "ROUGE" not in printed


@pytest.fixture
def of_fairseq(pair_data, translator, plain_translator, run_here, tmp_path):
    """Arguments of an encoder-decoder and of lists that fairseq has made with another one, the last of them a file."""
    decoding = [pair_data, *FAIRSEQ_FLAGS, "--path", plain_translator / "checkpoint_last.pt", "--beam", 4, "--nbest", 4]
    (tmp_path / "lists.txt").write_text(run_here(fairseq_cli.generate, *decoding, "--gen-subset", "valid"))
    return [pair_data, "--path", translator / "checkpoint_best.pt", "--input", tmp_path / "lists.txt"]


@pytest.fixture
def weights(of_fairseq, rescored, tmp_path):
    """Arguments of weights that were tuned to ROUGE-L."""
    rescored(*of_fairseq, "--tune", tmp_path / "weights.json", "--metric", "rougeL")
    return ["--weights", tmp_path / "weights.json"]


def test_lists_of_fairseq_are_rescored_by_an_encoder_decoder(of_fairseq, rescore, tmp_path):
    status, printed, told = rescore(*of_fairseq, "--tune", tmp_path / "weights.json", "--metric", "rougeL")
    assert (status, told) == (0, "")
    before, after = re.search(r"ROUGE-L(?: F1)? *\| *([\d.]+).*? \| *([\d.]+)", printed).groups()
    assert float(after) >= float(before) > 20
    found = json.loads(rescore(*of_fairseq, "--tune", tmp_path / "more.json", "--metric", "rougeL", "--json")[1])
    assert list(found["scores"]["ROUGE-L"]) == ["before", "after"]


@pytest.mark.parametrize("flags, metric", [([], "ROUGE-L"), (["--metric", "chrf"], "chrF")])
def test_scores_are_those_of_the_metric_that_was_tuned_or_asked_for(flags, metric, of_fairseq, weights, rescored):
    given = [*of_fairseq, *weights, "--output", "scores", *flags]
    printed = rescored(*given, "--max-tokens", 1)
    assert metric in printed and ("BLEU" in printed) == (metric == "chrF")
    assert "p (paired bootstrap, two-sided)" in printed and len(re.findall(r"\| +[01]\.\d{4} \|", printed)) >= 2
    found = json.loads(rescored(*given, "--json"))
    for title, gain in found["scores"].items():
        assert re.search(rf"{title} *\| *{gain['before']:.2f} \| *{gain['after']:.2f} \| *{gain['p']:.4f} ", printed)
    assert list(found["weights"]) == list(json.loads(weights[1].read_text())["weights"])


def test_lists_of_fairseq_keep_their_form(of_fairseq, weights, rescored):
    printed = rescored(*of_fairseq, *weights, "--output", "lists")
    assert len(re.findall("^[ST]-", printed, re.M)) == 120 and printed.count("\nH-") == 240


def test_tokens_that_a_model_does_not_know_are_told(of_fairseq, weights, rescore, tmp_path):
    *model, lists = of_fairseq
    unknown = re.sub(r"^(H-\d+\t[^\t]*\t)\S+", r"\1none", lists.read_text(), flags=re.M)
    (tmp_path / "other.txt").write_text(unknown)
    status, _, told = rescore(*model, tmp_path / "other.txt", *weights)
    assert status == 0 and re.search(r"checkpoint_best.pt does not know \d+.\d% of the tokens of its texts", told), told
    sources = re.findall(r"^S-\d+\t(.*)", lists.read_text(), flags=re.M)
    (tmp_path / "raw.txt").write_text("".join(re.sub(r"\S+", "none", line) + "\n" for line in sources))
    status, _, told = rescore(*of_fairseq, *weights, "--source", tmp_path / "raw.txt")
    assert status == 0 and "checkpoint_best.pt does not know 100.0% of the tokens of its texts" in told


def write_weights(path, factors):
    """Write the weights of models by their paths, as if they had been tuned."""
    digests = {model: file_digest(Path(model)) for model in factors}
    content = {"metric": "bleu", "weights": {"list": 0, "length": 0, **factors}, "digests": digests}
    path.write_text(json.dumps(content))
    return path


def test_a_language_model_of_the_target_stands_beside_an_encoder_decoder(
    pairs, pair_data, translator, rescore, run_here, tmp_path
):
    both = copy_data(pair_data, tmp_path / "both")
    shutil.copy(both / "dict.tgt.txt", both / "dict.txt")
    for split in ("train", "valid", "test"):
        shutil.copy(pairs / f"{split}.tgt", tmp_path / f"{split}.txt")
    text = preprocess(tmp_path, tmp_path / "text", "--srcdict", both / "dict.txt")
    training = [*MODEL_FLAGS, "--task", "stateful_lm", "--batch-size", 4, "--tokens-per-sample", 20, "--max-update", 2]
    training += ["--criterion", "regularized_cross_entropy", "--optimizer", "sgd", "--lr", 1, "--disable-validation"]
    run_here(fairseq_cli.train, text, "--save-dir", tmp_path / "lm", *training)
    models = [str(tmp_path / "lm/checkpoint_last.pt"), str(translator / "checkpoint_best.pt")]
    source, target = ((pairs / f"valid.{side}").read_text().splitlines()[0] for side in ("src", "tgt"))
    candidates = [target, " ".join(reversed(target.split())), f"{target} {target}"]
    lines = [f"S-0\t{source}", *(f"H-0\t-1.0\t{text}" for text in candidates)]
    (tmp_path / "lists.txt").write_text("".join(f"{line}\n" for line in lines))

    def scores(factors):
        weights = write_weights(tmp_path / "weights.json", factors)
        given = ["--input", tmp_path / "lists.txt", "--weights", weights, "--output", "lists"]
        status, printed, told = rescore(both, "--path", *factors, *given)
        assert (status, told) == (0, "")
        return {text: float(score) for score, text in re.findall(r"^H-0\t(\S+)\t(.*)", printed, re.M)}

    of_lm, of_translator, mixed = (
        scores(factors) for factors in ({models[0]: 1}, {models[1]: 1}, {models[0]: 0.25, models[1]: 2})
    )
    assert set(of_lm) == set(of_translator) == set(candidates) and of_lm != of_translator
    for text in candidates:
        assert mixed[text] == pytest.approx(0.25 * of_lm[text] + 2 * of_translator[text], rel=1e-3)


def test_lists_without_sources_take_those_of_a_file(rescored, tmp_path):
    model, data = SMALL_MODELS / "lstm_encdec_doc.pt", SMALL_MODELS / "data/translation"
    sources, texts = ["i c", "k a h"], [["xi xc", "xc"], ["xk xa xh", "xa xh xk"]]
    numbered = [(number, text) for number, found in enumerate(texts) for text in found]
    printed = [f"S-{number}\t{source}" for number, source in enumerate(sources)]
    printed += [f"H-{number}\t-1.0\t{text}" for number, text in numbered]
    for name, lines in {
        "generated": printed,
        "tab": [f"{number}\t-1.0\t{text}" for number, text in numbered],
        "sources": sources,
        "others": sources[::-1],
    }.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    weights = write_weights(tmp_path / "weights.json", {str(model): 1})

    def scores(name, form, *flags):
        given = ["--input", tmp_path / name, "--input-format", form, "--weights", weights, *flags]
        printed = rescored(data, "--path", model, *given, "--output", "lists")
        return re.findall(r"^(?:H-)?(\d\t.*)", printed, re.M)

    expected = scores("generated", "generate")
    assert len(expected) == 4 and scores("tab", "tab", "--source", tmp_path / "sources") == expected
    others = [
        scores(name, form, "--source", tmp_path / "others")
        for name, form in (("tab", "tab"), ("generated", "generate"))
    ]
    assert others[0] == others[1] != expected


def test_a_tokeniser_that_is_missing_is_told_before_candidates_are_scored(rescore, tmp_path, monkeypatch):
    scored = "fairseq_plugins.commands.rescore.candidate_features"
    monkeypatch.setattr(scored, lambda *args, **options: pytest.fail("they are scored"))
    monkeypatch.setattr(corpus, "BLEU", raise_missing)
    for name, text in (("lists", "0\t-1.0\txi\n0\t-2.0\txc\n"), ("sources", "i\n"), ("reference", "xi\n")):
        (tmp_path / name).write_text(text)
    given = ["--input", tmp_path / "lists", "--input-format", "tab", "--source", tmp_path / "sources"]
    tuned = ["--reference", tmp_path / "reference", "--tune", tmp_path / "weights.json", "--metric", "chrf"]
    model = [SMALL_MODELS / "data/translation", "--path", SMALL_MODELS / "lstm_encdec_doc.pt"]
    status, _, told = rescore(*model, *given, *tuned, "--target-lang", "ja")
    assert status == 2 and "BLEU of text in ja needs a tokeniser that is not installed" in told


def raise_missing(**words):
    raise RuntimeError("no tokeniser")
