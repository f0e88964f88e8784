"""Tatoeba: manythings' files and how they are split, sets that are split already, one side by itself."""

import gzip
import random
import re
from pathlib import Path

import pytest
from corpora import corpus_folder
from preparation.corpora import tatoeba
from preparation.errors import DataError
from preparation_runs import binarised, binarised_text, fail, joined, options_of, prepare, read_all, succeed
from small_corpora import manythings_files, tatoeba_files
from small_texts import SPLITS, sentences, text_of, write_files, zipped

CORPUS = tatoeba.Tatoeba()


@pytest.mark.parametrize("pair, code", [("de-en", "deu"), ("en-fr", "fra"), ("en-zh", "cmn"), ("tlh-en", "tlh")])
def test_manythings_names(pair: str, code: str, tmp_path: Path) -> None:
    lines = [f"Go {n}.\tGeh {n}!\tCC-BY" for n in range(40)]
    write_files(tmp_path / "text", {f"{code}.txt": text_of(lines, "\r\n")})
    write_files(tmp_path / "archive", {f"{code}-eng.zip": zipped({f"{code}.txt": text_of(lines)})})
    texts = [read_all(CORPUS, tmp_path / folder, options_of(CORPUS, pair)) for folder in ["text", "archive"]]
    assert texts[0] == texts[1]
    rows = sorted(row if pair.startswith("en") else row[::-1] for rows in texts[0].values() for row in rows)
    assert rows == sorted((f"Go {n}.", f"Geh {n}!") for n in range(40))


@pytest.mark.parametrize("pair", ["de-fr", "en-en", "en-de-fr", "german", "DE-en", "en-", "e"])
def test_no_pair(pair: str, here: Path) -> None:
    done = prepare("tatoeba", pair, cwd=here)
    assert done.returncode == 2 and "neither a language nor two of which one is en" in done.stderr


def key(sentence: str) -> str:
    return re.sub(r"\W+", "", sentence).lower()


def test_split_shares_no_sentence() -> None:
    rng = random.Random(1)
    english = [f"Sentence {n % 700}{rng.choice('.!?')}" for n in range(1000)]
    german = [rng.choice([str.upper, str.lower])(f"Satz, {n % 650}.") for n in range(1000)]
    rows = list(dict.fromkeys(zip(english, german)))
    splits = tatoeba.split_rows(rows)
    assert sorted(row for chosen in splits.values() for row in chosen) == sorted(rows)
    assert all(chosen == sorted(chosen, key=rows.index) for chosen in splits.values())
    for split, others in {"train": ["valid", "test"], "valid": ["train", "test"]}.items():
        assert 50 <= len(splits["test"]) <= 54 and 50 <= len(splits["valid"]) <= 54
        for side in range(2):
            ours = {key(row[side]) for row in splits[split]}
            assert not ours & {key(row[side]) for other in others for row in splits[other]}
    shuffled = rng.sample(rows, len(rows))
    again = tatoeba.split_rows(shuffled)
    assert {split: sorted(chosen) for split, chosen in again.items()} == {
        split: sorted(chosen) for split, chosen in splits.items()
    }


def test_sentences_that_all_hang_together_cannot_be_split(tmp_path: Path) -> None:
    write_files(tmp_path, {"deu.txt": text_of([f"Go.\tGeh {n}!\tx" for n in range(40)])})
    with pytest.raises(DataError, match="deu.txt has no pair .* valid and test"):
        read_all(CORPUS, tmp_path, options_of(CORPUS, "de-en"))


def test_damaged_lines(tmp_path: Path) -> None:
    write_files(tmp_path, {"deu.txt": b"Go.\tGeh.\tx\nRun.\n"})
    with pytest.raises(DataError, match="deu.txt:2: 1 fields, expected English, other language, attribution"):
        read_all(CORPUS, tmp_path, options_of(CORPUS, "de-en"))
    write_files(tmp_path, {"deu.txt": b"Go.\tGeh.\tx\n"})
    with pytest.raises(DataError, match="deu.txt has 1 pairs, at least 20 are expected"):
        read_all(CORPUS, tmp_path, options_of(CORPUS, "de-en"))


def test_pair_of_a_set_that_is_split(here: Path) -> None:
    write_files(here / "x", tatoeba_files())
    done = succeed("tatoeba", "de-en", "--from", "x", "--merges", 60, cwd=here, check=True)
    assert "not the set of 160,381, 2,000 and 2,000 pairs that has known checksums" in done.stderr
    dest = here / "data-bin" / "tatoeba.de-en"
    assert (dest / "prepared.txt").read_text().startswith("tatoeba de-en, another set, 60 merges of subword-nmt, ")
    for language in ["de", "en"]:
        assert [joined(line).split()[0] for line in binarised(dest, "train", "de-en", language)] == [
            str(n) for n in range(60)
        ]
        assert (dest / "raw" / f"test.{language}").read_bytes() == text_of(sentences(language, 4, seed=2))


@pytest.mark.parametrize("language", ["en", "de"])
def test_one_side_of_a_set_needs_no_other(language: str, here: Path) -> None:
    files = {name: data for name, data in tatoeba_files().items() if f".{language}." in name}
    write_files(here / "x", files)
    done = succeed("tatoeba", language, "--from", "x", cwd=here)
    dest = here / "data-bin" / f"tatoeba.{language}"
    assert "fairseq_plugins.cli.train reduced doc data-bin/tatoeba" in done.stdout
    assert [line[0] for line in binarised_text(dest, "train")] == [str(n) for n in range(60)]
    assert [len(binarised_text(dest, split)) for split in SPLITS] == [60, 5, 4]


def test_one_side_of_a_file(here: Path) -> None:
    write_files(here / "x", manythings_files())
    succeed("tatoeba", "en", "--from", "x", cwd=here)
    lines = [" ".join(line) for split in SPLITS for line in binarised_text(here / "data-bin" / "tatoeba.en", split)]
    assert len(lines) == 100 and all(line.endswith(". </s>") for line in lines)
    message = fail("tatoeba", "en", "--other", "fr", "--from", "x", "--dest", "other", cwd=here)
    assert "x has no fra-eng.zip (or fra.txt), nor train.en.gz" in message
    done = prepare("tatoeba", "en", "--other", "en", cwd=here)
    assert done.returncode == 2 and "--other is a language beside en" in done.stderr


@pytest.mark.parametrize("subject", ["de-en", "en"])
def test_another_set_does_not_pass_for_the_known_one(subject: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(here / "x", tatoeba_files())
    options = [subject, "--from", "x", *(["--merges", 20] if subject == "de-en" else [])]
    succeed("tatoeba", *options, cwd=here, check=True)
    assert "already complete" in succeed("tatoeba", *options, cwd=here, check=True).stderr
    assert "already complete" in succeed("tatoeba", *options, cwd=here).stderr
    assert "not checked" not in (here / "data-bin" / f"tatoeba.{subject}" / "prepared.txt").read_text()
    for sizes in [{"train": 60, "valid": 5, "test": 4}, None]:  # the known set, manythings' file
        if sizes:
            monkeypatch.setattr(tatoeba, "NUM_PAIRS", sizes)
        else:
            write_files(here / "y", manythings_files())
            options[options.index("x")] = "y"
        message = fail("tatoeba", *options, cwd=here, check=True)
        assert re.search(rf"already holds 'tatoeba {subject}, another set.*', not 'tatoeba {subject}", message)


@pytest.mark.parametrize("files", [tatoeba_files(), manythings_files()])
def test_a_result_is_left_alone_where_its_files_are_gone(files: dict[str, bytes], here: Path) -> None:
    write_files(here / "x", files)
    for subject in ["de-en", "en"]:
        options = [subject, "--from", "x", *(["--merges", 20] if subject == "de-en" else [])]
        if (here / "gone").exists():
            (here / "gone").rename(here / "x")
        succeed("tatoeba", *options, cwd=here)
        (here / "x").rename(here / "gone")
        assert "already complete" in succeed("tatoeba", *options, cwd=here).stderr


def test_a_text_that_is_there_twice_is_refused(here: Path) -> None:
    write_files(here / "x", {**tatoeba_files(), "train.en": b"Another text.\n"})
    message = fail("tatoeba", "en", "--from", "x", cwd=here)
    assert "x has both train.en.gz and train.en: leave the one that is meant" in message
    (here / "x/train.en").unlink()
    succeed("tatoeba", "en", "--from", "x", cwd=here)
    (here / "x/train.en").touch()
    assert "already complete" in succeed("tatoeba", "en", "--from", "x", cwd=here).stderr


def test_other_language_is_for_english_alone(here: Path) -> None:
    for subject in ["de-en", "de"]:
        done = prepare("tatoeba", subject, "--other", "de", cwd=here)
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1].endswith(f"--other is for en by itself, not for {subject}")


def test_known_sizes_demand_known_checksums(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tatoeba, "NUM_PAIRS", {"train": 60, "valid": 5, "test": 4})
    write_files(here / "x", tatoeba_files())
    for subject in ["de-en", "en"]:
        message = fail("tatoeba", subject, "--from", "x", cwd=here, check=True)
        assert re.search(r"train.(de|en) in x/train.\1.gz has SHA-256 .*, expected [0-9a-f]{64}: delete it", message)


@pytest.mark.data
@pytest.mark.slow
def test_real_set() -> None:
    folder = corpus_folder("tatoeba-de-en")
    texts = read_all(CORPUS, folder, options_of(CORPUS, "en-de", check=True))
    assert {split: len(rows) for split, rows in texts.items()} == {"train": 160381, "valid": 2000, "test": 2000}
    with gzip.open(folder / "test.en.gz", "rt", encoding="utf-8") as file:
        assert [row[0] for row in texts["test"]] == file.read().splitlines()
    alone = read_all(CORPUS, folder, options_of(CORPUS, "de", check=True))
    assert [row[0] for row in alone["valid"]] == [row[1] for row in texts["valid"]]


@pytest.mark.data
@pytest.mark.slow
def test_real_sentences_are_split(tmp_path: Path) -> None:
    """The real training sentences in the layout of manythings' file."""
    folder = corpus_folder("tatoeba-de-en")
    sides = [
        gzip.open(folder / f"train.{side}.gz", "rt", encoding="utf-8").read().splitlines() for side in ("en", "de")
    ]
    lines = [f"{english}\t{german}\tCC-BY" for english, german in zip(*sides)]
    write_files(tmp_path, {"deu.txt": text_of(lines)})
    texts = read_all(CORPUS, tmp_path, options_of(CORPUS, "en-de", check=True))
    assert sum(map(len, texts.values())) == len(set(lines)) and 2000 <= len(texts["test"]) < 2005
    for side in range(2):
        train = {key(row[side]) for row in texts["train"]}
        assert not [row for split in ["valid", "test"] for row in texts[split] if key(row[side]) in train]
