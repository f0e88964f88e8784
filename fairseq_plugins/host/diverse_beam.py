"""Groups of a diverse beam search are kept apart sentence by sentence.

Mends: ``--diverse-beam-groups`` looks up what a sentence's groups have written by the sentence's number in the data
set, in a table that has a row for each sentence of the batch: it ends in an IndexError, or takes another's.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_the_host_alone_takes_numbers_for_places`` passes.
"""

from typing import Any, Callable, Dict

from fairseq.search import DiverseBeamSearch
from fairseq.sequence_generator import SequenceGenerator

from fairseq_plugins.host.wrapping import wrap


def mend() -> None:
    """Wrap the host's search for a batch."""
    wrap(SequenceGenerator, "_generate", _search_by_places)


def _search_by_places(
    generate: Callable[..., Any], generator: SequenceGenerator, sample: Dict[str, Any], *args: Any, **options: Any
) -> Any:
    if isinstance(generator.search, DiverseBeamSearch):
        sample = {name: part for name, part in sample.items() if name != "id"}  # without it, places are taken
    return generate(generator, sample, *args, **options)
