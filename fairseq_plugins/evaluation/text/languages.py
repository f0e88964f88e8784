"""Languages of text, by the codes that Moses takes."""

from typing import Dict

SIDE_LANGUAGES: Dict[str, str] = {"article": "en", "title": "en"}
"""Sides of headline corpora, with the language that their text is in."""

LANGUAGES = frozenset(
    """
    aa ab ae af ak am an ar as av ay az ba be bg bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee
    el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io
    is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn
    mni mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd
    se sg si sk sl sm sn so sq sr ss st su sv sw ta tdt te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve
    vi vo wa wo xh yi yo yue za zh zu
    """.split()
)
"""Codes of ISO 639-1, and three more that Moses has rules for."""


def is_language(name: str) -> bool:
    """Whether text can be of this language, or of this side of a headline corpus."""
    return name in LANGUAGES or name in SIDE_LANGUAGES


def check_language(name: str, *, flag: str) -> None:
    """Refuse what is no language, for which Moses would take the rules of English without a word.

    Raises:
        ValueError: with the remedy.
    """
    if not is_language(name):
        raise ValueError(f"{flag} {name}: no language; give its code, such as de")
