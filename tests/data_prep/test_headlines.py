"""Gigaword and AG News: layouts, what is removed, the unknown word, the scripts."""

import csv
import gzip
import re
import tempfile
from argparse import Namespace
from pathlib import Path

import pytest
from fairseq.data.data_utils import post_process
from harness import SHARED_DATA, binarised, fail, joined, sentences, succeed
from parallel import agnews, gigaword, pipeline, subwords
from parallel.corpus import Corpus
from parallel.errors import DataError

SIDES = ("article", "title")
RUSH = {
    "train": ("train/train.article.txt", "train/train.title.txt"),
    "valid": ("train/valid.article.filter.txt", "train/valid.title.filter.txt"),
    "test": ("Giga/input.txt", "Giga/task1_ref0.txt"),
}
ORG_DATA = {split: tuple(f"{split}.{side}.txt" for side in ["src", "tgt"]) for split in ["train", "dev", "test"]}


def items(count: int) -> list[tuple[str, str]]:
    return [
        (f"article {n} <unk> : {line.lower()}", f"title {n} UNK ##") for n, line in enumerate(sentences("en", count))
    ]


def write_items(folder: Path, names: tuple[str, str], pairs: list[tuple[str, str]], *, compress: bool = False) -> None:
    for name, side in zip(names, zip(*pairs)):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content = "".join(f"{line}\n" for line in side).encode()
        if compress:
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(content))
        else:
            path.write_bytes(content)


def write_gigaword(folder: Path, layout: dict[str, tuple[str, str]], train: list | None = None, **kwargs) -> Path:
    for split, names in layout.items():
        write_items(folder, names, (train or items(40)) if split == "train" else items(6), **kwargs)
    return folder


def options_of(corpus: Corpus, *arguments: object) -> Namespace:
    options = pipeline.parse_options(corpus, list(map(str, arguments)))
    options.check = False
    return options


def read_all(corpus: Corpus, folder: Path, options: Namespace) -> dict[str, list[tuple[str, str]]]:
    with tempfile.TemporaryDirectory() as scratch:
        texts = corpus.read(corpus.find(folder, options), options, Path(scratch))
        return {split: list(pairs) for split, pairs in texts.items()}


@pytest.mark.parametrize("bpe", ["subword-nmt", "sentencepiece-unigram"])
def test_gigaword_script(bpe: str, tmp_path: Path) -> None:
    here = tmp_path / "with spaces"
    bad = [("", "t"), ("a", "..."), ("only punctuation", "<unk> UNK"), ("`` ''", "t")]
    write_gigaword(here / "x", RUSH, train=[*items(30), *bad, ("in 1999 , ab@@ </s> <pad>x", "the end 12")])
    test = [*items(3), ("", "x"), ("the rest", "of it 5")]
    write_items(here, ("zhou.src", "zhou.tgt"), test)
    options = ["--test-source", "zhou.src", "--test-target", "zhou.tgt", "--bpe", bpe]
    done = succeed("gigaword", "--from", "x", *options, "--merges", 40, cwd=here)
    assert (
        "train: 4 of 35 items are invalid, removed: empty article 1, no word in article 1, no word in title 1, "
        "only unknown words in title 1" in done.stdout
    )
    assert "test: 1 of 5 items are invalid, kept in their places: empty article 1" in done.stdout
    dest = here / "data-bin" / "gigaword"
    assert {path.name.split(".")[0] for path in dest.glob("*.idx")} == {"train", "valid", "test", "rush"}
    for number, side in enumerate(SIDES):
        raw = (dest / "raw" / f"test.{side}").read_text().split("\n")[:-1]
        assert raw == [re.sub("[0-9]", "#", pair[number]) for pair in test]
        train = binarised(dest, "train", "article-title", side)
        assert len(train) == 31
        unknown = "<unk>" if bpe == "subword-nmt" else "\u2581<unk>"
        assert all(line.split(" ").count(unknown) == 1 for line in train[:-1])
        text = [post_process(line, bpe.replace("-", "_").removesuffix("_unigram")) for line in train]
        assert text[-1] == ["in #### , ab@ /s padx", "the end ##"][number]
        assert all("<unk>" in line.split() for line in text[:-1])
    symbols = {line.split()[0] for line in (dest / "dict.article.txt").read_text().splitlines()}
    assert not symbols & {"<s>", "</s>", "<pad>", "<unk>"}


def test_gigaword_layouts(tmp_path: Path) -> None:
    corpus = gigaword.Gigaword()
    plain = dict(RUSH, valid=("train/valid.article.txt", "train/valid.title.txt"))
    layouts = {"rush": RUSH, "plain": plain, "org": ORG_DATA}
    for name, layout in layouts.items():
        for compress in [False, True]:
            folder = write_gigaword(tmp_path / f"{name}{compress}", layout, compress=compress)
            texts = read_all(corpus, folder, options_of(corpus))
            assert list(texts) == ["train", "valid", "test"] and len(texts["train"]) == 40
            assert texts["valid"][2] == (
                "article # <unk> : " + sentences("en", 3)[2].lower().replace("2", "#"),
                "title # UNK ##",
            )
    inner = write_gigaword(tmp_path / "deep" / "sumdata", RUSH)
    assert read_all(corpus, inner.parent, options_of(corpus)) == read_all(corpus, inner, options_of(corpus))


@pytest.mark.parametrize(
    "word, token",
    [("<s>", "s"), ("<<s>>", "s"), ("a<</s>>b", "a/sb"), ("<unk>", "<unk>"), ("[UNK]", "<unk>"), ("<<unk>>", "unk")],
)
def test_no_word_becomes_a_symbol_of_the_host(word: str, token: str) -> None:
    assert gigaword.Gigaword().tokenizer("article", False)(word) == token


def test_gigaword_drop_invalid(tmp_path: Path) -> None:
    corpus = gigaword.Gigaword()
    folder = write_gigaword(tmp_path, ORG_DATA)
    write_items(folder, ORG_DATA["test"], [("a", "b"), ("", "c"), ("d", "e")])
    assert read_all(corpus, folder, options_of(corpus))["test"] == [("a", "b"), ("", "c"), ("d", "e")]
    assert read_all(corpus, folder, options_of(corpus, "--drop-invalid"))["test"] == [("a", "b"), ("d", "e")]


def test_gigaword_errors(tmp_path: Path) -> None:
    corpus = gigaword.Gigaword()
    folder = write_gigaword(tmp_path / "x", ORG_DATA)
    options = options_of(corpus)
    options.check = True
    with pytest.raises(DataError, match="train.src.txt has 40 lines, expected 3803957"):
        read_all(corpus, folder, options)
    recipes = set()
    for text in ("a", "b"):
        path = tmp_path / text
        path.write_text(f"{text}\n")
        recipes.add(corpus.recipe(options_of(corpus, "--test-source", str(path), "--test-target", str(path))))
    assert len(recipes) == 2
    with pytest.raises(DataError, match="belong together"):
        corpus.find(folder, options_of(corpus, "--test-source", "a"))
    (folder / "test.tgt.txt").unlink()
    with pytest.raises(DataError, match=r"x has no test: .*test.src.txt \+ test.tgt.txt.* --test-source"):
        corpus.find(folder, options_of(corpus))
    (folder / "train.tgt.txt").write_text("a\n" * 39)
    write_items(folder, ORG_DATA["test"], items(2))
    with pytest.raises(DataError, match=r"train.src.txt:40: no line to pair with .*\(40 lines against 39\)"):
        read_all(corpus, folder, options_of(corpus))
    message = fail("gigaword", cwd=tmp_path)
    assert "cannot be downloaded" in message and "--from DIR" in message


@pytest.mark.parametrize("kind", list(subwords.KINDS))
def test_subwords_come_apart_and_together(kind: str, tmp_path: Path) -> None:
    """As ``fairseq-generate --remove-bpe`` does it, on words in and outside of what was learnt."""
    tokenise = gigaword.Gigaword().tokenizer("article", False)
    text = [tokenise(f"{source} {target}") for source, target in items(50)]
    path = tmp_path / "model"
    subwords.learn(kind, text, 40, path, ("<unk>",))
    split = subwords.load(kind, path)
    remove = kind.replace("-", "_").removesuffix("_unigram")
    for line in [*text, "<unk> zebra unk <unk> , ☃ 漢字 x<unk>y", "<unk>", ""]:
        line = tokenise(line)
        pieces = split(line)
        assert post_process(pieces, remove) == line
        assert sum("<unk>" in piece for piece in pieces.split()) == line.split().count("<unk>")


def write_csv(path: Path, rows: list[tuple[str, str, str]]) -> Path:
    with open(path, "w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return path


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
    (tmp_path / "x").mkdir()
    rows = [("3", f'Title "{n}" of Things', f"AP - {line}") for n, line in enumerate(sentences("en", 66))]
    write_csv(tmp_path / "x" / "sample.csv", rows)
    done = succeed("agnews", "--from", "x", "--merges", 30, cwd=tmp_path)
    assert "train.article: 58 lines" in done.stdout and "test.title: 4 lines" in done.stdout
    dest = tmp_path / "data-bin" / "agnews"
    for raw, line in zip(
        (dest / "raw" / "test.title").read_text().splitlines(), binarised(dest, "test", "article-title", "title")
    ):
        assert re.fullmatch('Title "[0-9]+" of Things', raw)
        assert joined(line).split() == raw.lower().replace('"', " &quot; ").split() or "<unk>" in line
    wrong = write_csv(tmp_path / "wrong.csv", [("1", "a", "b"), ("1", "a")])
    with pytest.raises(DataError, match="wrong.csv:2: 2 fields, expected class, headline, description"):
        agnews.read_rows(wrong)
    wrong.write_text('"1","a","b\n')
    with pytest.raises(DataError, match="wrong.csv:1: not CSV"):
        agnews.read_rows(wrong)


@pytest.mark.data
def test_real_agnews() -> None:
    folder = SHARED_DATA / "agnews"
    if not folder.is_dir():
        pytest.skip("AG News is not in ../shared/data/agnews")
    corpus = agnews.AGNews()
    options = options_of(corpus)
    options.check = True
    texts = read_all(corpus, folder, options)
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
