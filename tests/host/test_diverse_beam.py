"""Groups of a diverse beam search."""

import inspect

import pytest
import torch
from builders import build_tiny_encdec
from fairseq.search import BeamSearch, DiverseBeamSearch
from fairseq.sequence_generator import SequenceGenerator

from fairseq_plugins.host.diverse_beam import _search_by_places

SOURCES = torch.tensor([[5, 6, 7, 2], [8, 9, 5, 2], [7, 7, 9, 2]])


@pytest.fixture
def generator():
    model = build_tiny_encdec("full").eval()
    dictionary = model.decoder.dictionary
    search = DiverseBeamSearch(dictionary, num_groups=2, diversity_strength=0.7)
    return SequenceGenerator([model], dictionary, beam_size=4, max_len_b=6, search_strategy=search)


def written(generator, *, numbers, search=SequenceGenerator._generate):
    """The texts of each source, where they have these numbers in the data set."""
    sample = {"net_input": {"src_tokens": SOURCES, "src_lengths": torch.full((3,), 4)}}
    if numbers is not None:
        sample["id"] = torch.tensor(numbers)
    with torch.no_grad():
        found = search(generator, sample)
    return [[one["tokens"].tolist() for one in texts] for texts in found]


@pytest.mark.parametrize("numbers", [[0, 1, 2], [2, 0, 1], [7, 8, 9]])
def test_numbers_in_the_data_set_decide_nothing(numbers, generator):
    assert written(generator, numbers=numbers) == written(generator, numbers=None)


def test_groups_differ(generator):
    diverse = written(generator, numbers=[7, 8, 9])
    generator.search = BeamSearch(generator.tgt_dict)
    assert diverse != written(generator, numbers=[7, 8, 9])


def test_other_searches_are_given_what_they_were(generator):
    generator.search = BeamSearch(generator.tgt_dict)
    sample = {"id": 1}
    assert _search_by_places(lambda *args, **options: (args, options), generator, sample, 2, bos_token=3) == (
        (generator, sample, 2),
        {"bos_token": 3},
    )


def test_the_host_alone_takes_numbers_for_places(generator):
    host = inspect.unwrap(SequenceGenerator._generate)
    with pytest.raises(IndexError):
        written(generator, numbers=[7, 8, 9], search=host)
