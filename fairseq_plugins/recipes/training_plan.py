"""Which trainings make a table: systems with several seeds, and before them those that they begin with."""

from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Sequence, Tuple

from fairseq_plugins.recipes.recipe import Recipe, training_arguments
from fairseq_plugins.recipes.training import Training


@dataclass(frozen=True, kw_only=True)
class PlannedTraining:
    """A system with a seed.

    Attributes:
        system: its name in the recipe.
        seed: of the training.
        label: how tables name it.
        training: in a folder of its own.
        result: the checkpoint that it is for.
        begins_with: the trainings whose models it begins with.
    """

    system: str
    seed: int
    label: str
    training: Training
    result: Path
    begins_with: Sequence["PlannedTraining"]

    @property
    def name(self) -> str:
        """Of its folder."""
        return self.training.save_dir.name


class TrainingPlan:
    """Trainings of a recipe, each in ``save_dir/SYSTEM-SEED``, with a dash for a colon, which would part checkpoints.

    Args:
        recipe: whose systems are trained.
        data: directory that data-prep wrote.
        save_dir: directory for a folder of each training.
        more: arguments of every training, which come last and win.

    Attributes:
        trainings: all of them, each after those that it begins with.
    """

    def __init__(self, recipe: Recipe, *, data: str, save_dir: Path, more: Sequence[str] = ()) -> None:
        self.recipe, self.data, self.save_dir, self.more = recipe, data, save_dir, list(more)
        self._planned: Dict[Tuple[str, int], PlannedTraining] = {}

    @property
    def trainings(self) -> List[PlannedTraining]:
        return list(self._planned.values())

    def add(self, system: str, *, seed: int) -> PlannedTraining:
        """Plan a system with a seed.

        What it begins with has the same seed; of ``num`` models, those of seed 1 have 1 to ``num``, those of seed 2 the
        next ``num``, and so on, so that no two seeds share one.

        Raises:
            ValueError: if the recipe has no such system, a gate has no base in the recipe, the seed of one on several
                models is below 1, or a path of its base models has a colon, which parts them.
        """
        if (system, seed) not in self._planned:
            base = self.recipe.system(system).base
            seeds = _seeds_of_models(system, num=base.num, seed=seed) if base is not None else ()
            begins_with = [self.add(base.system, seed=one) for one in seeds] if base is not None else []
            self._planned[system, seed] = self._plan(system, seed=seed, begins_with=begins_with)
        return self._planned[system, seed]

    def _plan(self, system: str, *, seed: int, begins_with: Sequence[PlannedTraining]) -> PlannedTraining:
        save_dir = self.save_dir / f"{system}-{seed}".replace(":", "-")
        base = self.recipe.system(system).base
        checkpoints = [str(planned.result) for planned in begins_with]
        flags = [] if base is None else [f"--{base.flag}={':'.join(checkpoints)}"]
        if base is not None and base.flag == "base-model" and ":" in "".join(checkpoints):
            raise ValueError(f"--save-dir {self.save_dir}: a colon parts base models, give a directory without")
        arguments = training_arguments(
            self.recipe, system, data=self.data, save_dir=str(save_dir), seed=seed, more=[*flags, *self.more]
        )
        return PlannedTraining(
            system=system,
            seed=seed,
            label=self.recipe.label(system),
            training=Training(arguments=arguments, save_dir=save_dir),
            result=save_dir / f"checkpoint_{self.recipe.system(system).result}.pt",
            begins_with=begins_with,
        )


def _seeds_of_models(system: str, *, num: int, seed: int) -> Sequence[int]:
    """Those of the ``num`` models that a system begins with."""
    if num == 1:
        return [seed]
    if seed < 1:
        raise ValueError(f"--seeds {seed}: {system} begins with {num} models, whose seeds count from 1: give 1 or more")
    return range((seed - 1) * num + 1, seed * num + 1)
