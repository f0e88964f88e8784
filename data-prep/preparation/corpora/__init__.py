"""The corpora, by the names of their folders in data-prep."""

from ..corpus import Corpus
from .agnews import AGNews
from .gigaword import Gigaword
from .iwslt14 import IWSLT14
from .iwslt16 import IWSLT16
from .multi30k import Multi30k
from .ptb import PTB
from .reuters21578 import Reuters21578
from .tatoeba import Tatoeba
from .text8 import Text8
from .wikitext import WIKITEXT_2, WIKITEXT_103
from .wmt14 import WMT14
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
    )
}
