"""The step that times trainings of every language model's preset."""

from functools import partial
from typing import List, Mapping

from fairseq_plugins.benchmarks.device.corpora import random_text
from fairseq_plugins.benchmarks.device.step import Figures, Item, Step, failed_table
from fairseq_plugins.benchmarks.device.timed_systems import speeds, timed_items
from fairseq_plugins.benchmarks.training import TrainingSpeed
from fairseq_plugins.recipes import Recipe
from fairseq_plugins.recipes.language_models import PRESETS
from fairseq_plugins.reports.tables import as_table


class Models(Step):
    """All presets for Penn Treebank and WikiText-2, ``lstm_lm_awd`` and fairseq's ``lstm_lm``.

    The corpora are those that the user gave, in this order, or random words of as many kinds.
    """

    name = "models"

    def items(self) -> List[Item]:
        return [
            item
            for place, (suffix, recipe) in enumerate(PRESETS.items())
            for item in timed_items(self.setting, recipe, prefix=f"{suffix}: ", data=partial(self._data, place, suffix))
        ]

    def _data(self, place: int, suffix: str) -> str:
        if place < len(self.setting.data):
            return str(self.setting.data[place])
        scale = self.setting.scale
        size = scale.vocab_sizes[suffix]
        return str(random_text(self.setting.folder / "data", vocab_size=size, num_words=scale.num_random_words))

    def tables(self, found: Mapping[str, Figures]) -> str:
        parts: List[str] = []
        for place, (suffix, recipe) in enumerate(PRESETS.items()):
            measured = speeds(self.setting, recipe, found, prefix=f"{suffix}: ")
            if measured:
                given = place < len(self.setting.data)
                num_kinds = self.setting.scale.vocab_sizes[suffix]
                text = str(self.setting.data[place]) if given else f"random words of {num_kinds:,} kinds"
                parts += [f"Presets for {recipe.corpus.split('/')[-2]}, on {text}:", _as_table(measured, recipe)]
        parts.append(
            f"Medians of {self.setting.scale.num_rounds} runs, or of those that there are, of "
            f"{self.setting.scale.num_updates} updates by fairseq-train with SGD, the first fifth of a run left out. "
            "Every preset has its paper's rows and windows: words per second compare models, updates per second "
            "trainings."
        )
        return "\n\n".join([*parts, *failed_table(found)])


def _as_table(measured: Mapping[str, TrainingSpeed], recipe: Recipe) -> str:
    references = [measured.get(recipe.label(system)) for system in ("host", "awd")]
    rows = [
        [
            name,
            f"{speed.updates_per_second:,.2f}",
            f"{speed.words_per_second:,.0f}",
            *(other and f"{speed.words_per_second / other.words_per_second:.2f}" for other in references),
            f"{speed.peak_mib / 1024:,.1f} GiB",
        ]
        for name, speed in measured.items()
    ]
    columns = ["model", "updates per second", "words per second", "to fairseq's lstm_lm", "to lstm_lm_awd"]
    return as_table([*columns, "peak memory"], rows)
