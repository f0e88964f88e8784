"""Trainings of the systems of a recipe that are timed, an item a system and round."""

import statistics
from dataclasses import asdict
from functools import partial
from typing import Callable, Dict, List, Mapping

from fairseq_plugins.benchmarks.device.setting import Setting
from fairseq_plugins.benchmarks.device.step import Figures, Item
from fairseq_plugins.benchmarks.training import TrainingSpeed, measure_trainings
from fairseq_plugins.recipes import Recipe


def timed_items(setting: Setting, recipe: Recipe, *, prefix: str, data: Callable[[], str]) -> List[Item]:
    """Rounds over all systems, in both orders by turns.

    Args:
        setting: where they train.
        recipe: that has the systems.
        prefix: of the items' names.
        data: makes the corpus, or tells where it is.
    """
    systems = list(recipe.systems)
    return [
        Item(
            f"{prefix}{recipe.label(system)}, round {turn + 1}",
            partial(_measure, setting, recipe, system, data=data),
        )
        for turn in range(setting.scale.num_rounds)
        for system in (systems if turn % 2 == 0 else systems[::-1])
    ]


def _measure(setting: Setting, recipe: Recipe, system: str, *, data: Callable[[], str]) -> Figures:
    found = measure_trainings(
        recipe,
        [system],
        data=data(),
        num_updates=setting.scale.num_updates,
        num_rounds=1,
        flags=[*width_flags(setting, recipe, system), *setting.device_flags],
    )
    return asdict(found[recipe.label(system)])


def width_flags(setting: Setting, recipe: Recipe, system: str) -> List[str]:
    """Flags that give a system the widths of the setting's scale."""
    return setting.scale.width_flags(recipe.settings(system))


def speeds(setting: Setting, recipe: Recipe, found: Mapping[str, Figures], *, prefix: str) -> Dict[str, TrainingSpeed]:
    """Medians over the rounds that were measured, the largest memory, by the systems' labels in their order."""
    result = {}
    for system in recipe.systems:
        label = recipe.label(system)
        names = [f"{prefix}{label}, round {turn + 1}" for turn in range(setting.scale.num_rounds)]
        runs = [TrainingSpeed(**found[name]) for name in names if "words_per_second" in found.get(name, {})]
        if runs:
            result[label] = TrainingSpeed(
                words_per_second=statistics.median(run.words_per_second for run in runs),
                peak_mib=max(run.peak_mib for run in runs),
                updates_per_second=statistics.median(run.updates_per_second for run in runs),
            )
    return result
