"""WMT 2014's archives in the originals' layout, with random text: for the tests, and for measurements.

``python tests/data_prep/wmt14_archives.py DIR PAIRS`` writes archives with so many training pairs. The words follow
Zipf's law, so that vocabularies and tables of counts grow about as in real text: 0.2 million types a language in
200,000 pairs, 2 million in 4.5 million pairs.
"""

import functools
import io
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import small_texts
from small_texts import LANGUAGES, text_of, tgz

EXPONENT = 1.3  # of Zipf's law
SYLLABLES = {
    "de": [a + b for a in ["b", "d", "f", "g", "k", "l", "m", "sch", "t", "w"] for b in ["a", "e", "ei", "u", "ä"]],
    "en": [a + b for a in ["b", "d", "f", "g", "k", "l", "m", "sh", "th", "w"] for b in ["a", "e", "i", "ou", "y"]],
}
SHARES = {"europarl-v7": 0.43, "commoncrawl": 0.53, "news-commentary-v9": 0.04}
ARCHIVES = {
    "europarl-v7": ("training-parallel-europarl-v7.tgz", "training/"),
    "commoncrawl": ("training-parallel-commoncrawl.tgz", ""),
    "news-commentary-v9": ("training-parallel-nc-v9.tgz", "training/"),
}


@functools.cache
def word(language: str, rank: int) -> str:
    """The word of a rank: the lower, the shorter."""
    first, rest = rank % 50, rank // 50
    return SYLLABLES[language][first] + (word(language, rest) if rest else "")


def sentences(language: str, count: int, seed: int = 1) -> Iterator[str]:
    """Lines of about 23 words; the n-th begins with n in every language."""
    lengths = np.random.default_rng([seed, 0]).integers(6, 41, count)
    rng = np.random.default_rng([seed, 1 + (language == "en")])
    for number, length in enumerate(lengths.tolist()):
        line = [word(language, rank) for rank in rng.zipf(EXPONENT, length).tolist()]
        line[length // 2] += ","
        yield f"{number} {' '.join(line)}."


def sgm(test: str, kind: str, language: str, texts: list[str], *, end: str = "\n") -> bytes:
    """A development or test set in the campaigns' SGML: two documents, the second of one segment."""
    tag = f'<{kind}set setid="{test}" srclang="any"' + ("" if kind == "src" else f' trglang="{language}"') + ">"
    lines = [tag]
    for docid, segments in [("bbc.1", texts[:-1]), ("cnn.2", texts[-1:])]:
        lines += [f'<doc sysid="ref" docid="{docid}" genre="news" origlang=en>', "<hl>"]
        for number, text in enumerate(segments, 1):
            lines += [f'<seg id="{number}">{text}</seg>', "</hl>", "<p>"] if number == 1 else []
            lines += [f'<seg id="{number}"> {text} </seg>'] if number > 1 else []
        lines += ["</p>", "</doc>"]
    return "".join(f"{line}{end}" for line in [*lines, f"</{kind}set>"]).encode()


def test_sets(texts: dict[str, list[str]], *, end: str = "\n") -> dict[str, dict[str, bytes]]:
    """Members of dev.tgz and test-full.tgz by archive and name; ``texts`` are each set's after its name."""
    dev: dict[str, bytes] = {}
    full: dict[str, bytes] = {}
    for test in ["newstest2012", "newstest2013", "newstest2014", "newstest2015", "newstest2016"]:
        stems = [test] if test < "newstest2014" else [f"{test}-deen"]
        stems += [f"{test}-ende"] if test > "newstest2014" else []
        for stem in stems:
            for kind in ["src", "ref"]:
                for language, lines in texts.items():
                    data = sgm(test, kind, language, [f"{test} {language}", *lines], end=end)
                    members, folder = (full, "test-full") if test == "newstest2014" else (dev, "dev")
                    members[f"{folder}/{stem}-{kind}.{language}.sgm"] = data
    return {"dev.tgz": dev, "test-full.tgz": full}


test_sets.__test__ = False


TEXT = ["Q&amp;A with R&D &lt;b&gt;", "nested <b>bold <i>and</i></b> text", "caf&eacute; &#8211; 1 < 2 <3", "the end"]


def release_files(*, end: str = "\n", without: str = "") -> dict[str, bytes]:
    """All archives with 30, 20 and 10 training pairs; ``without`` names a member that is left out."""
    archives: dict[str, dict[str, bytes]] = {}
    for seed, (corpus, (archive, place)) in enumerate(ARCHIVES.items()):
        members = archives[archive] = {}
        for language in LANGUAGES:
            lines = small_texts.sentences(language, 30 - 10 * seed, seed)
            members[f"{place}{corpus}.de-en.{language}"] = text_of([f"{corpus} {line}" for line in lines])
            members[f"{place}{corpus}.fr-en.{language}"] = b"another pair\n"
    archives |= test_sets(dict.fromkeys(LANGUAGES, TEXT), end=end)
    return {
        archive: tgz({name: data for name, data in members.items() if not without or without not in name})
        for archive, members in archives.items()
    }


def write_tgz(path: Path, members: dict[str, bytes | Path]) -> None:
    """An archive of contents or files."""
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for name, data in members.items():
            if isinstance(data, Path):
                archive.add(data, name)
            else:
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def write_archives(folder: Path, num_pairs: int) -> Path:
    """All archives, with about so many training pairs."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (corpus, share) in enumerate(SHARES.items()):
        archive, place = ARCHIVES[corpus]
        members = {}
        for language in ["de", "en"]:
            path = folder / f"{corpus}.de-en.{language}"
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in sentences(language, max(1, round(num_pairs * share)), seed))
            members[f"{place}{path.name}"] = path
        write_tgz(folder / archive, members)
        for path in members.values():
            path.unlink()
    texts = {language: list(sentences(language, 20, seed=9)) for language in ["de", "en"]}
    for archive, members in test_sets(texts).items():
        write_tgz(folder / archive, members)
    return folder


if __name__ == "__main__":
    write_archives(Path(sys.argv[1]), int(sys.argv[2]))
