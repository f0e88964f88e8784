"""Which list of a parser belongs to which gold sentence."""

from typing import Dict, List, Sequence

from fairseq_plugins.trees.gold_sentences import GoldSentence
from fairseq_plugins.trees.parse_lists import CandidateTree, ParseLists


def pair_lists(lists: ParseLists, gold: Sequence[GoldSentence]) -> Dict[str, List[CandidateTree]]:
    """The candidates of each gold sentence by its name, in the order of the gold sentences.

    Sentences with names have the list of that name, or none. For sentences without names, lists in the order of
    sentences are taken one by one, and lists in any order by the sentence's number, counted from 0.

    Raises:
        ValueError: if lists and sentences do not belong together.
    """
    candidates = lists.candidates
    if all(sentence.name is None for sentence in gold) and lists.order == "of sentences":
        if len(candidates) != len(gold):
            raise ValueError(f"{len(candidates)} lists for {len(gold)} gold trees: give the lists of these sentences")
        return candidates
    names = [str(number) if sentence.name is None else sentence.name for number, sentence in enumerate(gold)]
    known = set(names)
    foreign = next((name for name in candidates if name not in known), None)
    if foreign is not None:
        remedy = "" if gold[0].name is not None else f"; lines are counted from 0 to {len(gold) - 1}"
        raise ValueError(f"there is a list for sentence {foreign}, which the gold trees do not have{remedy}")
    return {name: candidates.get(name, []) for name in names}
