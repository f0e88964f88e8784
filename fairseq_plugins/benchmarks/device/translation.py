"""The step that times training and decoding of encoder-decoders."""

import tempfile
from pathlib import Path
from typing import Dict, List, Mapping

from fairseq_plugins.benchmarks.device.corpora import demo_data
from fairseq_plugins.benchmarks.device.step import Figures, Item, Step, failed_table
from fairseq_plugins.benchmarks.device.timed_systems import speeds, timed_items, width_flags
from fairseq_plugins.benchmarks.training import (
    TRANSLATION_SUITES,
    as_markdown,
    decoding_as_markdown,
    measure_decoding,
    train_briefly,
)

RECIPE = TRANSLATION_SUITES["lstm"].recipe
DECODING = "decoding"
LENGTH = 15
"""Tokens of every hypothesis."""


class Translation(Step):
    """fairseq's ``lstm`` and the encoder-decoders of the recipe multi30k, on the user's corpus or the demo's."""

    name = "translation"

    def items(self) -> List[Item]:
        training = timed_items(self.setting, RECIPE, prefix="training of ", data=self._data)
        return [*training, Item(DECODING, self._decode)]

    def _data(self) -> str:
        return str(self.setting.data[0]) if self.setting.data else demo_data(self.setting, task="translation")

    def _decode(self) -> Figures:
        data = self._data()
        checkpoints: Dict[str, str] = {}
        with tempfile.TemporaryDirectory() as folder:
            for system in RECIPE.systems:
                flags = [*width_flags(self.setting, RECIPE, system), *self.setting.device_flags]
                checkpoints.update(train_briefly(RECIPE, [system], data=data, folder=Path(folder), flags=flags))
            found = measure_decoding(
                data,
                checkpoints,
                num_rounds=self.setting.scale.num_rounds,
                length=LENGTH,
                device=self.setting.device,
            )
        return {"sentences_per_second": found}

    def tables(self, found: Mapping[str, Figures]) -> str:
        parts: List[str] = []
        measured = speeds(self.setting, RECIPE, found, prefix="training of ")
        if measured:
            parts += ["Training (target tokens), ratios to the first:", as_markdown(measured)]
        decoded = found.get(DECODING, {}).get("sentences_per_second")
        if decoded:
            parts += [f"Decoding, beam 5, {LENGTH} tokens a hypothesis:", decoding_as_markdown(decoded)]
        scale = self.setting.scale
        text = str(self.setting.data[0]) if self.setting.data else "the demo's short sentences"
        parts.append(
            f"On {text}. Training: medians of {scale.num_rounds} runs, or of those that there are, of "
            f"{scale.num_updates} updates. Decoding: the test set, {scale.num_rounds} times, in one process, batch by "
            "batch by turns, in float32."
        )
        return "\n\n".join([*parts, *failed_table(found)])
