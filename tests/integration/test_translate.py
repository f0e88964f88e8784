"""Raw text is translated as fairseq translates the same text binarised, in the direction of the checkpoint."""

import json
import re
import shutil
import subprocess
from functools import partial

import fairseq_cli.generate
import fairseq_cli.interactive
import fairseq_cli.train
import fairseq_cli.validate
import pytest
import torch
from binarised_data import copy_data
from commands import ENVIRONMENT, command
from paths import ROOT
from translation_commands import FAIRSEQ_FLAGS, TRANSFORMER, generate, train_translator, translator_arguments
from typed_commands import type_command

import fairseq_plugins
from fairseq_plugins.evaluation.translation import Translator, load_translator

CASES = ROOT / "tests/cases"


@pytest.fixture(scope="module")
def sources(pairs):
    return (pairs / "test.src").read_text().splitlines()


@pytest.fixture(scope="module")
def transformer(pair_data, tmp_path_factory):
    save_dir = tmp_path_factory.mktemp("transformer")
    train_translator(pair_data, save_dir, "--max-update", 5, **TRANSFORMER)
    return save_dir / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def without_attention(pair_data, tmp_path_factory):
    save_dir = tmp_path_factory.mktemp("without attention")
    flags = ["--arch", "lstm_encdec", "--attention", "none", "--input-feeding", "off"]
    train_translator(pair_data, save_dir, "--max-update", 5, model=flags)
    return save_dir / "checkpoint_last.pt"


@pytest.fixture
def best(translator):
    return translator / "checkpoint_best.pt"


@pytest.fixture
def translate(call):
    """``translate(*arguments, typed)``: exit status, what is printed, what is told."""
    return partial(call, "translate", "--cpu")


@pytest.mark.parametrize("model", ["transformer", "ensemble of recurrent models"])
def test_translations_and_scores_are_those_of_fairseq(
    model, prepared, pairs, sources, translator, plain_translator, transformer, translate
):
    recurrent = [translator / "checkpoint_best.pt", plain_translator / "checkpoint_last.pt"]
    paths = [transformer] if model == "transformer" else recurrent
    own, more = ["--beam", 3, "--nbest", 2, "--lenpen", 0.7], ["--no-repeat-ngram-size", "2", "--min-len", "3"]
    files = ["--input", pairs / "test.src"]
    status, printed, told = translate(prepared, "--path", *paths, *files, *own, "--scores", "--", *more)
    assert (status, told) == (0, "")
    found = generate(prepared, ":".join(map(str, paths)), *own, *more)
    expected = [one for number in range(len(sources)) for one in found[number].hypotheses]
    scores, texts = zip(*(line.split("\t") for line in printed.splitlines()))
    assert [text.split() for text in texts] == [one.words for one in expected] and len(set(texts)) > 1
    assert [float(score) for score in scores] == pytest.approx([one.score for one in expected], abs=2e-4)


def test_files_keep_their_lines_and_every_output_has_the_same_translations(prepared, best, translate, tmp_path):
    (tmp_path / "one.txt").write_bytes(b"a b c d\r\n\n")
    (tmp_path / "two.txt").write_bytes(b"e f\ng h i a b\nzz")
    given = ["--path", best, "--input", tmp_path / "one.txt", tmp_path / "two.txt", "--nbest", 2]
    lines = ["a b c d", "", "e f", "g h i a b", "zz"]
    status, printed, told = translate(prepared, *given, "--batch-size", 2)
    texts = printed.split("\n")[:-1]
    assert (status, told) == (0, "")
    assert texts[:-2:2] == [" ".join(f"x{word}" for word in reversed(line.split())) for line in lines[:-1]]
    found = [json.loads(line) for line in translate(prepared, *given, "--json")[1].splitlines()]
    assert [one["source"] for one in found] == lines
    assert [each["text"] for one in found for each in one["hypotheses"]] == texts
    in_python = fairseq_plugins.load(best, prepared).translate(lines, nbest=2)
    for one, expected in zip(found, in_python):
        assert one["tokens"] == expected.source
        for each, hypothesis in zip(one["hypotheses"], [expected, *expected.others]):
            assert each["tokens"] == hypothesis.target and each["score"] == pytest.approx(hypothesis.score, abs=1e-4)
            assert each["alignment"] == (hypothesis.alignment and [list(pair) for pair in hypothesis.alignment])


def test_what_is_wrong_is_told_in_a_line_after_the_lines_before(prepared, best, translate):
    for typed, flags, told in (
        (b"a b\n\xff\xfe\n", [], "standard input, line 2: "),
        (b"a b\n" + b"a " * 2000 + b"\n", [], "standard input: line 2 has 2,000 subwords, the model reads up to 1,023"),
        (b"", [], "standard input is empty"),
        (b"a b\n", ["--", "--quiet"], "--quiet after the --: translate takes --max-len-a"),
        (b"a b\n", ["--scores", "--json"], "not allowed with argument --scores"),
    ):
        status, printed, error = translate(prepared, "--path", best, *flags, typed=typed)
        assert status == 2 and told in error and error.count("\n") == 1
        assert printed == ("xb xa\n" if "line 2" in told else "")


def test_every_line_that_is_typed_is_answered_at_once(prepared, best):
    arguments = command("fairseq_plugins", "translate", prepared, "--path", best, "--cpu")
    streams = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    with subprocess.Popen(arguments, **streams) as process:
        for line, translation in (("a b", "xb xa\n"), ("", "\n"), ("c d e", "xe xd xc\n")):
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            assert process.stdout.readline() == translation
        process.stdin.close()
        assert process.stdout.read() == "" and process.wait(timeout=60) == 0


def test_attention_is_that_of_fairseq_whatever_else_is_in_the_batch(prepared, sources, best):
    found = generate(prepared, best, "--print-alignment")
    model = load_translator([best], prepared)
    for number, sentence in enumerate(model.translate(sources)):
        (alone,) = model.translate([sources[number]])
        torch.testing.assert_close(sentence.attention, alone.attention)
        assert sentence.attention.shape == (len(sentence.target) + 1, len(sentence.source) + 1)
        torch.testing.assert_close(sentence.attention.sum(1), torch.ones(len(sentence.target) + 1))
        assert [f"{read}-{written}" for read, written in sentence.alignment] == found[number].hypotheses[0].alignment


def test_a_picture_shows_the_first_sentence(prepared, best, transformer, translate, tmp_path):
    for path in (best, transformer):
        picture = tmp_path / f"{path.parent.name}.png"
        status, printed, told = translate(prepared, "--path", path, "--plot", picture, typed=b"\na b c\nd\n")
        assert (status, told) == (0, "") and printed.count("\n") == 3
        assert picture.read_bytes().startswith(b"\x89PNG")
    assert not list(tmp_path.glob(".*"))


def test_a_picture_needs_a_sentence_and_a_model_with_attention(prepared, best, without_attention, translate, tmp_path):
    picture = ["--plot", tmp_path / "picture.png"]
    for path, typed, reason in (
        (best, b"\n\n", "there is no sentence to draw, all lines are blank"),
        (without_attention, b"a b\n", "the model has no attention"),
    ):
        status, _, told = translate(prepared, "--path", path, *picture, typed=typed)
        assert status == 2 and reason in told and told.count("\n") == 1, told
    assert not list(tmp_path.iterdir())
    assert translate(prepared, "--path", without_attention, typed=b"a b\n")[0] == 0


def test_tokens_instead_of_raw_text_are_warned_of_once(prepared, best, translate, caplog):
    status, _, _ = translate(prepared, "--path", best, typed=(CASES / "tokenised.en").read_bytes())
    (warning,) = [record.getMessage() for record in caplog.records]
    assert status == 0 and warning.startswith("standard input: 4 of 4 lines look tokenised or split into subwords")
    caplog.clear()
    fairseq_plugins.load(best, prepared).translate((CASES / "tokenised.en").read_text().splitlines())
    assert len(caplog.records) == 1


# a model that was trained from the target side of a folder to the source side: its checkpoint decides

TURNED = ("--source-lang", "tgt", "--target-lang", "src")
BRIEF = ("--max-update", "2")


@pytest.fixture(scope="module")
def data_with_texts(pair_data, pairs, tmp_path_factory):
    """``src-tgt`` files with the raw texts beside them."""
    copy = copy_data(pair_data, tmp_path_factory.mktemp("turned") / "data")
    (copy / "raw").mkdir()
    for side in ("src", "tgt"):
        shutil.copy(pairs / f"test.{side}", copy / "raw")
    return copy


@pytest.fixture(scope="module")
def turned(data_with_texts, made_once):
    """A ``--save-dir`` with ``train.log``."""

    def make(save_dir):
        (save_dir / "train.log").write_text(train_translator(data_with_texts, save_dir, *TURNED, *BRIEF))

    return made_once("turned translator", make)


@pytest.fixture(scope="module")
def forward(data_with_texts, made_once):
    """A ``--save-dir`` of a run without languages, which takes those of the folder."""
    return made_once("forward translator", lambda save_dir: train_translator(data_with_texts, save_dir, *BRIEF))


def texts(output, kind):
    found = dict(re.findall(rf"^{kind}-(\d+)\t(.*)$", output, re.M))
    return [found[str(number)] for number in range(len(found))]


def test_everything_that_scores_a_split_reads_its_target_side(data_with_texts, turned, pairs, call, tmp_path):
    sources, targets = ((pairs / f"test.{side}").read_text().splitlines() for side in ("tgt", "src"))
    given = [data_with_texts, "--path", turned / "checkpoint_best.pt", "--cpu", "--out"]
    assert call("evaluate bleu", *given, turned / "test")[0] == 0
    generated = (turned / "test/generate.txt").read_text()
    assert texts(generated, "S") == sources and texts(generated, "T") == targets
    assert call("decode", *given, tmp_path / "again")[0] == 0
    assert texts((tmp_path / "again/generate.txt").read_text(), "S") == sources
    status, _, told = call("evaluate rouge", *given, turned / "test")
    assert status == 0 and "== decode" not in told
    gone = shutil.copytree(turned, tmp_path / "gone", ignore=shutil.ignore_patterns("*.pt"))
    runs = ["--path", f"here={turned}", f"gone={gone}"]
    for metric in ("bleu", "rouge"):
        compared = [data_with_texts, *runs, "--metric", metric, "--cpu", "--out", tmp_path / metric]
        assert call("compare runs", *compared)[0] == 0


def test_fairseq_generates_in_the_direction_of_the_checkpoint(data_with_texts, turned, pairs, run_here, tmp_path):
    (tmp_path / "typed").write_text("xa xb\n")
    flags = [data_with_texts, *FAIRSEQ_FLAGS, "--path", turned / "checkpoint_best.pt", "--beam", 1, "--max-len-b", 3]
    assert texts(run_here(fairseq_cli.generate, *flags), "S") == (pairs / "test.tgt").read_text().splitlines()
    assert texts(run_here(fairseq_cli.interactive, *flags, "--input", tmp_path / "typed"), "S") == ["xa xb"]


@pytest.mark.parametrize("flags", [["-s", "src", "-t", "tgt"], ["--source-lang=src"], ["-t", "tgt"]])
def test_another_direction_is_refused_in_a_line(flags, data_with_texts, turned, run_here, refuse, tmp_path):
    given = [data_with_texts, "--path", turned / "checkpoint_best.pt"]
    for program in (fairseq_cli.generate, fairseq_cli.validate):
        told = r"checkpoint_best.pt translates tgt into src: give --source-lang tgt --target-lang src[^\n]*$"
        with pytest.raises(ValueError, match=told):
            run_here(program, *given, *FAIRSEQ_FLAGS, "--batch-size", 9, *flags)
    told = refuse("decode", *given, "--out", tmp_path / "out", "--cpu", "--", *flags)
    assert f"{flags[0]} after the --: leave it out, the models decide the direction" in told
    assert not (tmp_path / "out").exists()


def test_models_of_two_directions_are_no_ensemble(data_with_texts, turned, forward, run_here, refuse, tmp_path):
    models = [turned / "checkpoint_best.pt", forward / "checkpoint_best.pt"]
    with pytest.raises(ValueError, match="translates src into tgt"):
        run_here(fairseq_cli.generate, data_with_texts, *FAIRSEQ_FLAGS, "--path", ":".join(map(str, models)))
    (tmp_path / "lists").write_text("S-0\txa xb\nT-0\tb a\nH-0\t-1\tb a\n")
    runs = [f"{place}={model}" for place, model in enumerate(models)]
    for name, *arguments in (
        ("decode", "--path", *models, "--out", tmp_path / "out"),
        ("rescore", "--path", *models, "--input", tmp_path / "lists", "--tune", tmp_path / "weights", "--cpu"),
        ("compare runs", "--path", *runs, "--metric", "bleu", "--out", tmp_path),
    ):
        told = refuse(name, data_with_texts, *arguments)
        assert "the models translate src-tgt and tgt-src: give models of one pair of languages" in told


def test_a_run_resumes_in_its_direction(data_with_texts, turned, run_here, tmp_path):
    save_dir = shutil.copytree(turned, tmp_path / "run")
    with pytest.raises(ValueError, match="dict.src.txt, is not the one that the checkpoint was trained with"):
        run_here(fairseq_cli.train, *translator_arguments(data_with_texts, save_dir, "--max-update", 3))


def test_references_and_splits_are_those_of_the_models_languages(data_with_texts, turned, refuse, tmp_path):
    given = [data_with_texts, "--path", turned / "checkpoint_best.pt", "--out", tmp_path / "out", "--reference"]
    told = refuse("evaluate bleu", *given, data_with_texts / "raw/test.tgt")
    assert re.search("test.tgt ends in tgt, and .* translates tgt into src: give a reference in src", told)
    table = [data_with_texts, "--path", f"a={turned}", "--metric", "bleu", "--out", tmp_path]
    for told in (
        refuse("evaluate bleu", *given, data_with_texts / "raw/test.src", "--split", "dev"),
        refuse("compare runs", *table, "--split", "dev"),
    ):
        assert "has no dev set: take one of test, train, valid" in told


@pytest.mark.parametrize("given, batch_size", [("file", 32), ("pipe", 1)])
def test_lines_of_a_file_on_the_standard_input_are_translated_in_batches(
    given, batch_size, prepared, best, tmp_path, monkeypatch, capsys
):
    found = []
    translate_stream = Translator.translate_stream

    def record(*arguments, **options):
        found.append(options["batch_size"])
        return translate_stream(*arguments, **options)

    monkeypatch.setattr(Translator, "translate_stream", record)
    (tmp_path / "lines").write_text("a b\n\nc d e\n")
    with subprocess.Popen(["cat", tmp_path / "lines"], stdout=subprocess.PIPE, text=True) as cat:
        with (tmp_path / "lines").open() as file:
            monkeypatch.setattr("sys.stdin", file if given == "file" else cat.stdout)
            type_command("translate", [prepared, "--path", best, "--cpu"])
    assert capsys.readouterr().out == "xb xa\n\nxe xd xc\n" and found == [batch_size]
