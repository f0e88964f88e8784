"""Text as users have it: decomposed accents, joiners, tokens instead of text, lines of test in train, UTF-16."""

import json
from pathlib import Path

import pytest
from preparation_runs import binarised, fail, joined, succeed
from small_corpora import write_files

from fairseq_plugins.cli.evaluate_translation import EvaluateTranslation
from fairseq_plugins.evaluation.raw_text import load_side_text, load_text_preparation

CASES = Path(__file__).resolve().parents[1] / "cases"
PERSIAN = (CASES / "joiners.fa").read_text().splitlines()
ENGLISH = ["I want to read the books.", "The houses of this town are small.", "He goes I know not where."]
TEST_ENGLISH = ["One, two & three.", "Four and five.", "Six [seven]."]


def write_pairs(folder: Path, other: str, sides: dict[str, list[str]]) -> None:
    lines = {f"{split}.{other}": text for split, text in sides.items()}
    lines |= {f"{split}.en": TEST_ENGLISH if split == "test" else ENGLISH for split in sides}
    write_files(folder, {name: "".join(f"{line}\n" for line in text).encode() for name, text in lines.items()})


def test_perfect_translations_of_text_with_joiners_have_bleu_100(here: Path, capsys: pytest.CaptureFixture) -> None:
    write_pairs(here / "x", "fa", dict.fromkeys(("train", "valid", "test"), PERSIAN))
    done = succeed("tatoeba", "en-fa", "--from", "x", "--merges", 20, cwd=here)
    assert "valid.fa: tokenising and detokenising gives 3 of 3 lines back; 0 are changed" in done.stdout.splitlines()
    assert "train as well" not in done.stderr and "look tokenised" not in done.stderr
    data = here / "data-bin/tatoeba.en-fa"
    preparation = load_text_preparation(data, source="en", target="fa")
    pieces = binarised(data, "test", "en-fa", "fa")
    assert [preparation.join(line.split()) for line in pieces] == PERSIAN
    lines = [f"{kind}-{n}\t{joined(line)}" for n, line in enumerate(pieces) for kind in ("T", "H")]
    lines = [line.replace("\t", "\t-0.1\t") if line[0] == "H" else line for line in lines]
    (here / "generate.txt").write_text("".join(f"{line}\n" for line in lines))
    reference = data / "raw/test.fa"
    assert reference.read_text().splitlines() == PERSIAN
    EvaluateTranslation().main(["--input", str(here / "generate.txt"), "--reference", str(reference), "--json"])
    assert json.loads(capsys.readouterr().out)["scores"][0]["value"] == pytest.approx(100)


def test_accents_are_composed_unless_they_are_to_be_kept(here: Path) -> None:
    composed, decomposed = ((CASES / f"{form}.de").read_text().splitlines() for form in ("nfc", "nfd"))
    made = {}
    for form, text in (("nfc", composed), ("nfd", decomposed)):
        write_pairs(here / form, "de", dict.fromkeys(("train", "valid", "test"), text))
        succeed("tatoeba", "de", "--from", form, "--dest", form + ".bin", "--work", form + ".work", cwd=here)
        made[form] = [(here / f"{form}.bin" / name).read_bytes() for name in ("dict.txt", "train.bin", "text.json")]
        text_of = load_side_text(here / f"{form}.bin")
        assert [text_of.split(line) for line in decomposed] == [text_of.split(line) for line in composed]
        assert [text_of.join(text_of.split(line)) for line in decomposed] == composed
    assert made["nfc"] == made["nfd"]
    options = ("--from", "nfd", "--no-nfc", "--dest", "kept", "--work", "nfd.work")
    succeed("tatoeba", "de", *options, cwd=here)
    kept = load_side_text(here / "kept")
    assert "no NFC" in (here / "kept/prepared.txt").read_text().splitlines()[0]
    assert [kept.join(kept.split(line)) for line in decomposed] == decomposed != composed
    words = {line.split()[0] for line in (here / "kept/dict.txt").read_text().splitlines()}
    assert {word for line in decomposed for word in kept.split(line)} <= words


def test_tokens_instead_of_text_are_warned_of_once_with_counts(here: Path) -> None:
    tokenised = (CASES / "tokenised.en").read_text().splitlines()
    write_pairs(here / "x", "de", {"train": tokenised, "valid": PERSIAN, "test": TEST_ENGLISH})
    (warning,) = _warnings(succeed("tatoeba", "de", "--from", "x", cwd=here).stderr)
    assert warning == (
        "warning: the text of tatoeba: 4 of 10 lines look tokenised or split into subwords already (escapes such as "
        "&apos; 4, @-@ 1, @@ 2, \u2581 3), and would be so twice: give raw text"
    )


@pytest.mark.parametrize("num_common", [3, 1])
def test_lines_of_test_that_are_in_train_are_counted(num_common: int, here: Path) -> None:
    test = [*ENGLISH[:num_common], *TEST_ENGLISH[num_common:]]
    text = {"train.en": ENGLISH, "valid.en": PERSIAN, "test.en": test}
    write_files(here / "x", {name: "".join(f"{line}\n" for line in lines).encode() for name, lines in text.items()})
    (warning,) = _warnings(succeed("tatoeba", "en", "--from", "x", cwd=here).stderr)
    assert warning.startswith(f"warning: test: {num_common} of its 3 lines are in train as well: ")


def test_text_in_utf_16_without_a_mark_is_refused(here: Path) -> None:
    write_pairs(here / "x", "de", dict.fromkeys(("train", "valid", "test"), ENGLISH))
    for encoding in ("utf-16-le", "utf-16-be"):
        (here / "x/train.de").write_bytes("\n".join(PERSIAN).encode(encoding))
        error = fail("tatoeba", "de", "--from", "x", cwd=here)
        assert "x/train.de:" in error and "not UTF-8 text" in error and "convert it to UTF-8" in error


def _warnings(told: str) -> list[str]:
    return [line for line in told.splitlines() if line.startswith("warning: ") and "EXPECTED_COUNTS" not in line]
