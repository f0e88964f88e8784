"""How large what is measured is: as in the papers on a GPU, tiny on a CPU."""

from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Sequence

from fairseq_plugins.benchmarks.output_layer import DEFAULT_CASES, Case
from fairseq_plugins.models.presets import Value, command_line


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Sizes.

    Attributes:
        name: how tables call it.
        output_cases: of the output layer alone.
        num_repetitions: of each timing of it.
        num_updates: of a training that is timed.
        num_check_updates: of a training that is checked.
        num_rounds: of trainings and of decoding.
        num_sentences: that are taken of the demo's training text, and as many in all of the other splits.
        vocab_sizes: of random text, by the suffix of the presets that train on it.
        num_random_words: of random training text.
        width: of every layer and embedding, or None for those of the presets.
    """

    name: str
    output_cases: Sequence[Case]
    num_repetitions: int
    num_updates: int
    num_check_updates: int
    num_rounds: int
    num_sentences: int
    vocab_sizes: Mapping[str, int]
    num_random_words: int
    width: Optional[int] = None

    def width_flags(self, flags: Mapping[str, Value]) -> List[str]:
        """Flags of ``fairseq-train`` that give a model this scale's widths; none where the presets' are kept.

        Args:
            flags: of the model, with its widths; dashes and underscores are the same in their names.
        """
        if self.width is None:
            return []
        chosen: Dict[str, Value] = {}
        for flag, value in flags.items():
            name = flag.replace("_", "-")
            if name == "hidden-sizes":
                chosen[name] = " ".join([str(self.width)] * len(str(value).split()))
            elif name.endswith(("embed-dim", "hidden-size")):
                chosen[name] = self.width
        return command_line(chosen)


FULL = Scale(
    name="full",
    output_cases=[Case.parse(text) for text in DEFAULT_CASES],
    num_repetitions=15,
    num_updates=50,
    num_check_updates=100,
    num_rounds=2,
    num_sentences=14_000,
    vocab_sizes={"ptb": 10_000, "wt2": 33_278},
    num_random_words=600_000,
)
"""Of a GPU; the longest epoch of random text is longer than a timed training, whatever its rows."""

TOY = Scale(
    name="toy",
    output_cases=[Case(vocab_size=200, num_experts=3, width=16, num_tokens=40)],
    num_repetitions=2,
    num_updates=10,
    num_check_updates=10,
    num_rounds=1,
    num_sentences=200,
    vocab_sizes={"ptb": 100, "wt2": 150},
    num_random_words=60_000,
    width=16,
)
"""Of a CPU, where figures only show that a step runs."""
