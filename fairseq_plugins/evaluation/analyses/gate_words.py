"""Words that a gate raises after an input word (Takase, Suzuki & Nagata 2017, table 5).

Shapes: V vocabulary, n input words.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Sequence, Union

import torch
from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from torch import Tensor

from fairseq_plugins.output_layers.gate import OUTPUT_GATES, NoGate, OutputGate
from fairseq_plugins.output_layers.input_to_output_gate import InputToOutputGate


@dataclass(frozen=True)
class RaisedWord:
    """A word whose logit a gate leaves high.

    Attributes:
        word: the output word.
        gate: what its logit is multiplied by after the input word, between 0 and 1.
        count: its occurrences in the training text.
    """

    word: str
    gate: float
    count: int


def word_gate(model: BaseFairseqModel, path: Union[str, Path]) -> InputToOutputGate:
    """The gate of a model, if it reads the input word alone; ``path`` names the model.

    Raises:
        ValueError: if there is none, or it reads more.
    """
    gates = [module for module in model.modules() if isinstance(module, OutputGate) and module.name != NoGate.name]
    if not gates:
        raise ValueError(f"{path} has no gate: give a model with {OUTPUT_GATES.flag} {InputToOutputGate.name}")
    (gate,) = gates
    if type(gate) is not InputToOutputGate:
        raise ValueError(
            f"{path} has {OUTPUT_GATES.flag} {gate.name}, which depends on more than the input word: give a model with "
            f"{OUTPUT_GATES.flag} {InputToOutputGate.name}"
        )
    return gate


def word_indices(words: Sequence[str], dictionary: Dictionary) -> Tensor:
    """Numbers of the words, (n) int64.

    Raises:
        ValueError: if one is not in the dictionary.
    """
    indices = [dictionary.index(word) for word in words]
    unknown = [word for word, index in zip(words, indices) if index == dictionary.unk() and word != dictionary.unk_word]
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: not in the dictionary of the data; give words as the text has them")
    return torch.tensor(indices)


@torch.no_grad()
def raised_words(
    gate: InputToOutputGate,
    words: Sequence[str],
    *,
    dictionary: Dictionary,
    counts: Tensor,
    min_count: int,
    num_words: int,
) -> Dict[str, List[RaisedWord]]:
    """The output words with the largest gates after each input word, the largest first.

    Args:
        gate: that reads the input word alone.
        words: input words.
        dictionary: the model's, whose size is V.
        counts: occurrences in the training text, (V,) int64.
        min_count: output words with fewer occurrences are left out.
        num_words: how many are returned, or fewer where so few are frequent enough.

    Raises:
        ValueError: if an input word is not in the dictionary, or no output word is frequent enough.
    """
    device = gate.linear.weight.device
    values = torch.sigmoid(gate.linear(gate.embedding(word_indices(words, dictionary).to(device)))).cpu()
    frequent = (counts >= min_count).nonzero().squeeze(-1)
    if not len(frequent):
        raise ValueError(f"--min-count {min_count}: no word of train occurs as often; give a lower one")
    best = values[:, frequent].sort(dim=-1, descending=True, stable=True)
    return {
        word: [
            RaisedWord(dictionary[index], float(value), int(counts[index]))
            for value, index in zip(ranked, frequent[order[:num_words]].tolist())
        ]
        for word, ranked, order in zip(words, best.values, best.indices)
    }
