"""Small releases of IWSLT in the campaigns' formats."""

from small_texts import LANGUAGES, sentences, text_of

YEARS = ["dev2010", "tst2010", "tst2011", "tst2012", "tst2013", "tst2014"]
IWSLT14_SETS = ["TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012"]


def tagged(talks: list[list[str]], end: str = "\n") -> bytes:
    """``train.tags`` text."""
    out = []
    for number, talk in enumerate(talks):
        out += [
            f"<url>http://www.ted.com/talks/{number}.html</url>",
            "<keywords>talks, R & D</keywords>",
            "<speaker>A. Speaker</speaker>",
            f"<talkid>{number}</talkid>",
            "<title>A <em>nested</em> title</title>",
            "<description>TED Talk Subtitles and Transcript: <b>x</b> & y</description>",
            *(f" {line} " for line in talk),
            '<reviewer href="http://www.ted.com/profiles/1">Someone</reviewer>',
            '<translator href="http://www.ted.com/profiles/2">Someone</translator>',
        ]
    return text_of(out, end)


def xml(talks: dict[str, list[str]], end: str = "\n") -> bytes:
    """A development or test set, with the campaign's own carelessness about ``&``."""
    out = ['<?xml version="1.0" encoding="UTF-8"?>', "<mteval>", '<refset setid="iwslt2016" trglang="x" refid="ref">']
    for number, talk in talks.items():
        out += [f'<doc docid="{number}" genre="lectures">', f"<url>http://www.ted.com/talks/{number}?a=1&b=2</url>"]
        out += ["<description>Q & A, 1 < 2</description>", f"<talkid>{number}</talkid>", "<title>A &eacute;</title>"]
        out += [f'<seg id="{index}"> {line} </seg>' for index, line in enumerate(talk, 1)]
        out += ["</doc>"]
    return text_of([*out, "</refset>", "</mteval>"], end)


def iwslt16_files(pair: str, *, end: str = "\n") -> dict[str, bytes]:
    """A release of 2016: three talks for training, one talk of three lines for each year."""
    files = {}
    for language in pair.split("-"):
        train = sentences(language, 60)
        train[5] = "AT&amp;T &#8212; 1 < 2 &unknown; R&D"
        train[7] = "<3 is no tag, <em>neither</em>"
        files[f"train.tags.{pair}.{language}"] = tagged([train[:20], train[20:21], train[21:]], end)
        for year in YEARS:
            talk = [f"{year} first in {language} .", "Q&A with <b>Procter &amp; <i>Gamble</i></b>&nbsp;: 1 < 2", "bye"]
            files[f"IWSLT16.TED.{year}.{pair}.{language}.xml"] = xml({"69": talk}, end)
    return files


def iwslt14_files() -> dict[str, bytes]:
    """A release of 2014, German-English: two talks for training, one talk of two lines for each set."""
    files = {}
    for language in LANGUAGES:
        train = sentences(language, 90)
        train[9] = "word " * 176
        files[f"train.tags.de-en.{language}"] = tagged([train[:20], train[20:]])
        for name in IWSLT14_SETS:
            talk = xml({"69": [f"{name} in {language} \u2019s", "The end"]})
            files[f"IWSLT14.{name}.de-en.{language}.xml"] = talk
    return files
