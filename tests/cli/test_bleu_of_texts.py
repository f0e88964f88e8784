"""BLEU of translations that are there, in files or on the standard input."""

import io
import json
import re
import shutil
from pathlib import Path

import pytest
import sacrebleu
from binarised_lines import write_split
from filelock import FileLock
from sacrebleu.tokenizers import tokenizer_ja_mecab

from fairseq_plugins.cli.evaluate_rouge import EvaluateRouge
from fairseq_plugins.cli.evaluate_translation import EvaluateTranslation
from fairseq_plugins.evaluation import decoding

OLDER = Path(__file__).parents[1] / "fixtures/older_checkpoints"
LINES = ["ein kleines Haus steht hier .", "das Haus ist alt , sagt er .", "hier steht ein Haus ."]
TARGETS = ["ein kleines Haus steht hier .", "das Haus ist alt , sagt sie .", "dort steht ein Haus ."]
RAW = ["ein kleines Haus steht hier.", "das Haus ist alt, sagt sie.", "dort steht ein Haus."]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reference").write_text("".join(f"{line}\n" for line in TARGETS))
    pairs = enumerate(zip(TARGETS, LINES))
    generated = (f"T-{n}\t{target}\nH-{n}\t-1\t{line[:-2]} !\n" for n, (target, line) in pairs)
    (tmp_path / "generate.txt").write_text("".join(generated))
    (tmp_path / "raw.de").write_text("".join(f"{line}\n" for line in RAW))
    return tmp_path


def output_of(capsys, *arguments):
    EvaluateTranslation().main(arguments)
    return capsys.readouterr().out


def test_a_system_against_itself_is_no_difference(capsys):
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


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["--write-hypotheses", "no/text"], "argument --write-hypotheses: no/text: no is no directory: make it first"),
        (["raw.de"], "--reference reference raw.de: BLEU is of one file of references here: give one"),
        (["--reference", "raw.de"], "--reference reference raw.de: BLEU is of one file of references here: give one"),
        (["."], "--reference . is a folder: give a text file; DATA comes first, before all flags"),
        (["--against", "nowhere"], "nowhere has no generate.txt: evaluate the baseline first"),
        ([], "reference does not end in a language: name that of the detokeniser with --target-lang"),
    ],
)
def test_what_cannot_be_scored_is_refused_before_the_work(arguments, told, capsys):
    with pytest.raises(SystemExit) as error:
        EvaluateTranslation().main(["--input", "generate.txt", "--reference", "reference", *arguments])
    shown = capsys.readouterr()
    assert error.value.code == 2 and shown.out == ""
    assert re.fullmatch(f"python -m fairseq_plugins.cli.evaluate_translation: error: {told}\n", shown.err), shown.err


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


@pytest.mark.parametrize("flags", [[], ["--target-lang", "de"]])
def test_references_of_any_name_are_of_the_datas_language(flags, decoded, folder, capsys):
    (folder / "raw.de").rename(folder / "references.txt")
    assert "BLEU, detokenised" in output_of(capsys, *decoded, "--reference", "references.txt", *flags)
    detokenised = ["ein kleines Haus steht hier!", "das Haus ist alt, sagt er!", "hier steht ein Haus!"]
    assert (folder / "out/hypotheses.txt").read_text().splitlines() == detokenised
    assert "--beam 5 --max-tokens 4000 --remove-bpe=subword_nmt" in (folder / "out/asked.txt").read_text()


def test_blank_references_are_refused_before_decoding(decoded, folder, capsys):
    (folder / "raw.de").write_text("ein kleines Haus steht hier.\n\ndort steht ein Haus.\n")
    told = refusal(capsys, *decoded, "--reference", "raw.de")
    assert "raw.de, line 2: blank, nothing could be compared with it: give a reference" in told
    assert not (folder / "out/generate.txt").exists()


def test_flags_of_a_decoding_are_part_of_what_was_asked(decoded, folder, capsys):
    output_of(capsys, *decoded, "--reference", "raw.de", "--beam", "3", "--max-tokens", "70", "--bpe", "sentencepiece")
    assert "--beam 3 --max-tokens 70 --remove-bpe=sentencepiece" in (folder / "out/asked.txt").read_text()


def test_a_decoding_loads_its_data_itself_unless_told_otherwise(decoded, folder, capsys):
    (folder / "stub/fairseq_cli/generate.py").write_text(
        "import pathlib, sys; print(*sys.argv[1:], file=sys.stderr); print(pathlib.Path('generate.txt').read_text())"
    )
    output_of(capsys, *decoded, "--reference", "raw.de", "--", "--num-workers", "2")
    flags = (folder / "out/generate.log").read_text().split()
    workers = [flags[place + 1] for place, flag in enumerate(flags) if flag == "--num-workers"]
    assert workers == ["0", "2"]  # the last one wins
    assert "--num-workers 0" not in (folder / "out/asked.txt").read_text()  # what was decoded before stays


def test_a_second_decoding_into_a_folder_waits_for_the_first(decoded, folder, monkeypatch, capsys):
    output_of(capsys, *decoded, "--reference", "raw.de")
    (folder / "out").rename(folder / "kept")
    (folder / "out").mkdir()
    first, told = FileLock(folder / "out/.decoding.lock"), []
    first.acquire()

    def finish_the_first(message, **options):
        told.append(message)
        for name in ("asked.txt", "generate.txt"):
            (folder / "kept" / name).rename(folder / "out" / name)
        first.release()

    monkeypatch.setattr(decoding, "print", finish_the_first, raising=False)
    assert "BLEU, detokenised" in output_of(capsys, *decoded, "--reference", "raw.de")
    assert told == ["waiting for another decoding that writes to out"]  # and nothing is decoded again


@pytest.mark.parametrize(
    "content, told",
    [
        (
            "ein Hund bellt.\neine Katze schläft.\nder Vogel singt.\n",
            "raw.de is not the reference of .*: its line 1 is",
        ),
        ("ein kleines Haus steht hier.\n\ndort steht ein Haus.\n", "raw.de, line 2: blank, nothing could be compared"),
        ("\n\n\n", "raw.de, line 1: blank, nothing could be compared with it: give a reference"),
    ],
)
def test_references_of_another_text_are_refused(content, told, folder, capsys):
    (folder / "raw.de").write_text(content)
    assert re.search(told, refusal(capsys, "--input", "generate.txt", "--reference", "raw.de"))


def test_escapes_in_pieces_are_scored_as_all_lines(folder, capsys):
    """The codes and the dictionary are those of another text, in which there was no &."""
    lines = (Path(__file__).parents[1] / "cases/escapes.en").read_text(encoding="utf-8").splitlines()
    (folder / "raw.en").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    targets = [
        "He works for Müller <<unk>> amp; Sons .",
        "She said <<unk>> quot; Come ! <<unk>> quot; and left .",
        "R <<unk>> amp; D costs <<unk>> lt; 5 % of sales <<unk>> gt; 2019 .",
        "It <<unk>> apos; s John <<unk>> apos; s dog <<unk>> apos; s <<unk>> <<unk>> 91; old <<unk>> 93; bowl .",
    ]
    texts = enumerate(targets)
    (folder / "generate.txt").write_text("".join(f"T-{n}\t{text}\nH-{n}\t-1\t{text}\n" for n, text in texts))
    EvaluateTranslation().main(["--input", "generate.txt", "--reference", "raw.en"])
    shown = capsys.readouterr()
    assert "BLEU, detokenised" in shown.out and shown.err == ""
    EvaluateRouge().main(["--input", "generate.txt", "--reference", "raw.en"])
    assert "ROUGE-1" in capsys.readouterr().out


@pytest.mark.parametrize("mark", ["@@", "\u2581"])
def test_marks_of_the_text_itself_are_scored(mark, folder, capsys):
    (folder / "raw.de").write_text("".join(f"{line} {mark} eins\n" for line in RAW), encoding="utf-8")
    pairs = enumerate(zip(TARGETS, LINES))
    generated = (f"T-{n}\t{text} {mark} eins\nH-{n}\t-1\t{line} {mark} eins\n" for n, (text, line) in pairs)
    (folder / "generate.txt").write_text("".join(generated))
    assert "BLEU, detokenised" in output_of(capsys, "--input", "generate.txt", "--reference", "raw.de")


def test_blank_references_of_plain_text_are_refused(folder, capsys):
    (folder / "raw.de").write_text("\n\n\n")
    arguments = ["--input", "reference", "--input-format", "text", "--reference", "raw.de"]
    assert "raw.de, line 1: blank" in refusal(capsys, *arguments)


def test_words_that_the_wrong_kind_of_subwords_joined_are_refused(folder, capsys):
    """--remove-bpe=sentencepiece takes the blanks of text that sentencepiece did not split."""
    joined = (folder / "generate.txt").read_text().replace(" ", "")
    (folder / "generate.txt").write_text(joined)
    told = refusal(capsys, "--input", "generate.txt", "--reference", "raw.de")
    assert "the words of target 0, 'einkleinesHausstehthier.', are joined" in told and "--bpe" in told


@pytest.mark.parametrize(
    "flags, told",
    [
        (["--reference", "raw.de", "--target-lang", "xx"], "--target-lang xx: no language; give its code, such as de"),
        (["--reference", "raw.txt"], "raw.txt does not end in a language: name that of the detokeniser"),
    ],
)
def test_what_is_no_language_is_refused(flags, told, folder, capsys):
    (folder / "raw.txt").write_text((folder / "raw.de").read_text())
    assert told in refusal(capsys, "--input", "generate.txt", *flags)


def test_another_language_than_that_of_the_data_is_refused(decoded, folder, capsys):
    told = refusal(capsys, *decoded, "--reference", "raw.de", "--target-lang", "fr")
    assert "--target-lang fr: model.pt translates into de: leave it out" in told and not (folder / "out").exists()


@pytest.mark.parametrize(
    "content, told",
    [
        (
            OLDER / "lstm_lm_doc.pt",
            "model.pt was trained for --task stateful_lm, not for translation: give an encoder-",
        ),
        (OLDER / "expected.json", "model.pt is no checkpoint or was cut short"),
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
    line = "ValueError: model.pt is damaged: take another"
    (folder / "stub/fairseq_cli/generate.py").write_text(f"import sys; sys.exit('{line}')")
    assert "error: model.pt is damaged: take another (log: out/generate.log)" in refusal(
        capsys, *decoded, "--reference", "raw.de"
    )


def refusal(capsys, *arguments):
    """The line of a command that ends with status 2."""
    with pytest.raises(SystemExit) as error:
        EvaluateTranslation().main(arguments)
    shown = capsys.readouterr()
    assert error.value.code == 2 and shown.out == ""
    return shown.err.splitlines()[-1]
