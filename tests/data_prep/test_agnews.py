"""AG News: cleaning, a split that shares nothing, the script."""

import re
from pathlib import Path

import pytest
from corpora import corpus_folder
from preparation.corpora import agnews
from preparation.errors import DataError
from preparation_runs import binarised, joined, options_of, read_all, succeed
from small_corpora import agnews_files
from small_texts import write_files


@pytest.mark.parametrize(
    "headline, description, expected",
    [
        ("A b (AP)", "AP - It #39;s  #36;10", ("It's $10", "A b")),
        ("A b (AP)", "Other - text", ("Other - text", "A b (AP)")),
        ("A (Update3)", r" NEW YORK (Reuters) - two\lines, he  quot;said quot;", ('two lines, he "said"', "A")),
        ("R amp;D; all", "BAGHDAD, Iraq -- Johnson  amp; Co", ("Johnson & Co", "R&D; all")),
        (
            "x &lt;b&gt;...&lt;/b&gt;",
            'LONDON, Aug. 28. - &lt;A HREF="http://x"&gt;MSFT.O&lt;/A&gt; y',
            ("MSFT.O y", "x ..."),
        ),
        ("x", 'WASHINGTON - one #151; <IMG SRC="a', ("one\u2014", "x")),
        ("x", "A sentence - with a dash", ("A sentence - with a dash", "x")),
    ],
)
def test_agnews_cleaning(headline: str, description: str, expected: tuple[str, str]) -> None:
    assert agnews.item(headline, description) == expected


def test_agnews_split_shares_nothing() -> None:
    pairs = [(f"text {n % 90}", f"headline {n % 95}") for n in range(100)]
    splits = agnews.split_items(pairs)
    assert {split: len(chosen) for split, chosen in splits.items()} == {"train": 88, "valid": 6, "test": 6}
    assert sorted(pair for chosen in splits.values() for pair in chosen) == sorted(pairs)
    for held_out in ["valid", "test"]:
        rest = [pair for split in splits if split != held_out for pair in splits[split]]
        for number in range(2):
            assert not {pair[number] for pair in rest} & {pair[number] for pair in splits[held_out]}
    assert agnews.split_items(pairs) == splits


def test_agnews_script(tmp_path: Path) -> None:
    write_files(tmp_path / "x", agnews_files())
    done = succeed("agnews", "--from", "x", "--merges", 30, cwd=tmp_path)
    assert "train.article: 58 lines" in done.stdout and "test.title: 4 lines" in done.stdout
    dest = tmp_path / "data-bin" / "agnews"
    raw_titles = (dest / "raw" / "test.title").read_text().splitlines()
    for raw, line in zip(raw_titles, binarised(dest, "test", "article-title", "title"), strict=True):
        assert re.fullmatch('Title "[0-9]+" of Things', raw)
        assert joined(line).split() == raw.lower().replace('"', " &quot; ").split()
    wrong = tmp_path / "wrong.csv"
    wrong.write_text('"1","a","b"\n"1","a"\n')
    with pytest.raises(DataError, match="wrong.csv:2: 2 fields, expected class, headline, description"):
        agnews.read_rows(wrong)
    wrong.write_text('"1","a","b\n')
    with pytest.raises(DataError, match="wrong.csv:1: not CSV"):
        agnews.read_rows(wrong)


@pytest.mark.data
def test_real_agnews() -> None:
    folder = corpus_folder("agnews")
    corpus = agnews.AGNews()
    texts = read_all(corpus, folder, options_of(corpus, check=True))
    assert {split: len(pairs) for split, pairs in texts.items()} == {"train": 5800, "valid": 400, "test": 400}
    sides = [
        [{re.sub(r"\W+", " ", pair[number].lower()) for pair in texts[split]} for split in texts] for number in range(2)
    ]
    for train, valid, test in sides:
        assert not train & valid and not train & test and not valid & test
    text = " ".join(side for pairs in texts.values() for pair in pairs for side in pair)
    assert not re.search(r"#\d\d;|quot;|\\|&lt;|&gt;", text)
    assert not any(re.match(r".{0,30}\((AP|Reuters|AFP)\) -|(AP|Reuters|AFP) -", pair[0]) for pair in texts["test"])
    assert not any(re.search(r"\((AP|Reuters|AFP)\)$", pair[1]) for pair in texts["test"])
