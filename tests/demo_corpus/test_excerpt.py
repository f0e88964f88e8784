"""The excerpt of Tatoeba that the demo runs on."""

import gzip
import re
import subprocess
from pathlib import Path

import pytest
from paths import ROOT
from real_corpora import corpus_folder

import fairseq_plugins

CORPUS = Path(fairseq_plugins.__file__).parent / "demo_corpus"
NUM_PAIRS = {"train": 14000, "valid": 500, "test": 1000}
LANGUAGES = ("de", "en")


def read(folder, split, language):
    with gzip.open(folder / f"{split}.{language}.gz", "rt", encoding="utf-8", newline="\n") as file:
        return file.read().split("\n")[:-1]


def same_in_any_writing(sentence):
    return " ".join(re.findall(r"\w+", sentence.casefold()))


def test_the_readme_tells_sizes_and_licence():
    readme = (CORPUS / "README.md").read_text()
    for split, num_pairs in NUM_PAIRS.items():
        sides = [read(CORPUS, split, language) for language in LANGUAGES]
        assert [len(lines) for lines in sides] == [num_pairs] * 2
        assert all(line == line.strip() and 1 <= len(line.split()) <= 9 for lines in sides for line in lines)
        counts = " / ".join(f"{sum(len(line.split()) for line in lines):,}" for lines in sides)
        assert f"| {split} | {num_pairs:,} | {counts} |" in readme
    licence = "creativecommons.org/licenses/by/2.0/fr/legalcode"
    assert all(named in readme for named in ("tatoeba.org", "manythings.org/anki", "CC BY 2.0 FR", licence))
    assert sum(path.stat().st_size for path in CORPUS.iterdir()) < 500 * 1024
    assert {path.name for path in CORPUS.glob("*.gz")} == {f"{s}.{lang}.gz" for s in NUM_PAIRS for lang in LANGUAGES}
    for path in CORPUS.glob("*.gz"):  # no time and no name
        header = path.read_bytes()[:8]
        assert header[3] == 0 and header[4:] == bytes(4)


@pytest.mark.parametrize("language, num_words", [("de", 1000), ("en", 700)])
def test_no_sentence_is_in_two_splits_and_the_vocabulary_is_small(language, num_words):
    splits = [read(CORPUS, split, language) for split in NUM_PAIRS]
    train, valid, test = (list(map(same_in_any_writing, lines)) for lines in splits)
    assert not set(train) & {*valid, *test} and not set(valid) & set(test)
    assert len(set(valid)) == len(valid) and len(set(test)) == len(test)
    words = {word for lines in splits for line in lines for word in re.findall(r"\w+(?:['’]\w+)*", line.lower())}
    assert 500 < len(words) <= num_words


@pytest.mark.data
def test_every_pair_is_one_of_the_source():
    source = corpus_folder("tatoeba-de-en")
    known = {pair for split in NUM_PAIRS for pair in zip(*(read(source, split, language) for language in LANGUAGES))}
    for split in NUM_PAIRS:
        assert known.issuperset(zip(*(read(CORPUS, split, language) for language in LANGUAGES)))


def test_sentences_of_the_demo_are_not_in_the_corpus():
    script = (ROOT / "scripts/demo.sh").read_text()
    sentences = re.search(r"sentences\.de\" << 'END'\n(.*?)END\n", script, re.S)[1].splitlines()
    corpus = {same_in_any_writing(line) for split in NUM_PAIRS for line in read(CORPUS, split, "de")}
    assert len(sentences) == 3 and not corpus & set(map(same_in_any_writing, sentences))
    words = {word for sentence in corpus for word in sentence.split()}
    assert {word for sentence in sentences for word in same_in_any_writing(sentence).split()} <= words


def test_wrong_arguments_of_the_demo_are_refused_before_anything_is_installed():
    result = subprocess.run(["bash", ROOT / "scripts/demo.sh", "--quick"], capture_output=True, text=True)
    assert result.returncode == 2 and result.stdout == "" and result.stderr.startswith("usage: bash scripts/demo.sh\n")
