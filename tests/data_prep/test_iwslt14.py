"""IWSLT 2014: the usual training text, the split after the filter, the test sets; the partial set."""

import re
from pathlib import Path

import pytest
from corpora import corpus_folder
from iwslt_files import IWSLT14_SETS, iwslt14_files
from preparation import lines
from preparation.corpora import iwslt14
from preparation_runs import binarised, fail, joined, options_of, prepare, read_all, succeed
from small_texts import LANGUAGES, tgz, write_files

CORPUS = iwslt14.IWSLT14()
PARTIAL = {
    "train": {
        "de": ["er &apos;s hund , und &quot; haus &quot; .", "b c", "d e"],
        "en": ["he &apos;s a dog .", "b", "e"],
    },
    "valid": {"de": ["a &amp; b .", "c d", "e f", "g ."], "en": ["it &apos;s &amp; b .", "c , d", "e", "g ."]},
}


def partial_files() -> dict[str, bytes]:
    files = {(split, side): lines for split, sides in PARTIAL.items() for side, lines in sides.items()}
    return {
        f"{split}.{side}.gz": "".join(f"{line}\n" for line in lines).encode() for (split, side), lines in files.items()
    }


@pytest.mark.parametrize("pair", ["de-en", "en-de"])
def test_usual_text_and_split(pair: str, here: Path) -> None:
    write_files(here / "x" / "de-en", iwslt14_files())
    done = succeed("iwslt14", pair, "--from", "x", "--merges", 200, cwd=here)
    dest = here / "data-bin" / f"iwslt14.{pair}"
    # Two talks give a title and a description each; one of the 90 lines is too long.
    assert "train: 93 of 94 pairs kept; dropped: length 1" in done.stdout
    for language in LANGUAGES:
        sentences = [joined(line) for line in binarised(dest, "train", pair, language)]
        valid = list(lines.read_lines(here / "downloads" / "iwslt14" / pair / "tokens" / f"valid.{language}"))
        assert (
            len(sentences) == 93 - 93 // 23 and len(valid) == len(binarised(dest, "valid", pair, language)) == 93 // 23
        )
        assert sentences[0] == "a &lt; em &gt; nested &lt; / em &gt; title"
        assert sentences[1].startswith("ted talk subtitles and transcript : &lt; b &gt; x &lt; / b &gt; &amp; y")
        # Kept are the titles, 0 to 19 without 9, the titles, 20 to 89; every 23rd of these is in valid.
        numbers = ["", "", *(str(n) for n in range(20) if n != 9), "", "", *(str(n) for n in range(20, 90))]
        held_out = numbers[22::23]
        assert [line.split()[0] if number else "" for line, number in zip(valid, held_out)] == held_out
        raw = (dest / "raw" / f"valid.{language}").read_text().splitlines()
        assert [line.split()[0] for line in raw if line[0].isdigit()] == [number for number in held_out if number]
        rest = [number for index, number in enumerate(numbers, 1) if index % 23]
        assert [re.sub(r"\D.*", "", line.split()[0]) for line in sentences] == rest
        raw = (dest / "raw" / f"test.{language}").read_text().splitlines()
        assert raw == [line for name in IWSLT14_SETS for line in [f"{name} in {language} 's", "The end"]]
        assert all(line == line.lower() for line in binarised(dest, "test", pair, language))


def test_archive_and_files_are_the_same(tmp_path: Path) -> None:
    write_files(tmp_path / "files", iwslt14_files())
    archive = tgz({f"de-en/{name}": data for name, data in iwslt14_files().items()})
    write_files(tmp_path / "archive", {"de-en.tgz": archive})
    texts = [read_all(CORPUS, tmp_path / name, options_of(CORPUS, "de-en")) for name in ["files", "archive"]]
    assert texts[0] == texts[1] and list(texts[0]) == ["train", "test"]


def test_texts_that_are_there_are_not_downloaded(tmp_path: Path, monkeypatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(iwslt14, "download", lambda attempts, is_sound: asked.append(attempts[0][1].name))
    for place in ("files", "files/de-en"):
        CORPUS.download(write_files(tmp_path / place, iwslt14_files()), options_of(CORPUS, "de-en"))
    assert asked == []
    CORPUS.download(tmp_path / "nothing", options_of(CORPUS, "de-en"))
    assert asked == ["de-en.tgz"]


def test_too_few_pairs_for_valid(here: Path) -> None:
    write_files(here / "x", iwslt14_files())
    message = fail("iwslt14", "de-en", "--from", "x", "--max-length", 6, "--min-length", 6, "--merges", 9, cwd=here)
    assert re.search("the filter left [0-9]+ training pairs, too few for valid, one in 23 of them", message)


def test_partial_set(here: Path) -> None:
    write_files(here / "x", partial_files())
    done = succeed("iwslt14", "de-en", "--partial", "--from", "x", "--merges", 9, "--max-ratio", 0, cwd=here)
    dest = here / "data-bin" / "iwslt14-partial.de-en"
    assert "train: 3 of 3 pairs kept" in done.stdout
    for language in LANGUAGES:  # its tokens are not tokenised again
        assert [joined(line) for line in binarised(dest, "train", "de-en", language)] == PARTIAL["train"][language]
        assert len(binarised(dest, "valid", "de-en", language)) == len(binarised(dest, "test", "de-en", language)) == 2
    assert (dest / "raw" / "valid.en").read_text() == "it's & b.\nc, d\n"
    assert (dest / "raw" / "test.de").read_text() == "e f\ng.\n"


def test_partial_set_is_asked_for(here: Path) -> None:
    write_files(here / "x", partial_files())
    message = fail("iwslt14", "de-en", "--from", "x", cwd=here)
    assert "x has no de-en.tgz" in message and "the partial set is taken with --partial" in message
    message = fail("iwslt14", "de-en", "--partial", "--from", "x", cwd=here, check=True)
    assert "train.de in x/train.de.gz has SHA-256" in message
    (here / "x" / "valid.en.gz").unlink()
    message = fail("iwslt14", "de-en", "--partial", "--from", "x", cwd=here)
    assert "x has no valid.en" in message and "--partial" in message
    assert "cannot be downloaded" in fail("iwslt14", "de-en", "--partial", cwd=here)
    assert prepare("iwslt14", "de-en", "--partial", "--no-lowercase", cwd=here).returncode == 2


@pytest.mark.data
def test_real_partial_set() -> None:
    folder = corpus_folder("iwslt14-partial")
    texts = read_all(CORPUS, folder, options_of(CORPUS, "de-en", "--partial", check=True))
    assert {split: len(rows) for split, rows in texts.items()} == {"train": 45853, "valid": 3641, "test": 3642}
    reference = CORPUS.reference_of(options_of(CORPUS, "de-en", "--partial"))("en")
    raw = [reference(row[1]) for row in texts["test"]]
    assert raw[0] == "yes, you know it." and not any(re.search(r"&(apos|quot|amp);", line) for line in raw)
