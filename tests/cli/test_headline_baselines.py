"""Baselines of headlines: first words and random titles."""

from fairseq_plugins.cli.headline_baselines import HeadlineBaselines


def test_baselines_of_headlines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "articles").write_text("oil prices rise again today\npolice kill a gunman\n")
    (tmp_path / "titles").write_text("".join(f"oil up {number}\n" for number in range(1000)))
    line, drawn = "--articles articles --titles titles --words 2", []
    for out, seed in (("a", 3), ("b", 3), ("c", 4)):
        HeadlineBaselines().main(f"{line} --out {out} --seed {seed}".split())
        assert (tmp_path / out / "first_words.txt").read_text() == "oil prices\npolice kill\n"
        drawn.append((tmp_path / out / "random_title.txt").read_text().splitlines())
    assert drawn[0] == drawn[1] != drawn[2] and drawn[0][0] != drawn[0][1]
    assert all(title in (tmp_path / "titles").read_text().splitlines() for titles in drawn for title in titles)
