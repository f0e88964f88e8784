"""The corpora, by the names of their folders in data-prep."""

from ..corpus import Corpus
from .headlines import AGNews, Gigaword, Reuters21578
from .language_models import PTB, WIKITEXT_2, WIKITEXT_103, Text8
from .own import Own
from .ted_talks import IWSLT14, IWSLT16
from .translation import WMT14, Multi30k, Tatoeba
from .wsj import WSJ

CORPORA: dict[str, Corpus] = {
    corpus.name: corpus
    for corpus in (
        PTB,
        WIKITEXT_2,
        WIKITEXT_103,
        Text8(),
        Multi30k(),
        Tatoeba(),
        IWSLT14(),
        IWSLT16(),
        WMT14(),
        AGNews(),
        Reuters21578(),
        Gigaword(),
        WSJ(),
        Own(),
    )
}
