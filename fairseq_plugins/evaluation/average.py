"""The mean of the weights of several checkpoints of one run (Vaswani et al. 2017, section 6.1)."""

from pathlib import Path
from typing import Any, Dict, Sequence, Tuple

import torch
from omegaconf import OmegaConf
from torch import Tensor
from tqdm import tqdm

from fairseq_plugins.evaluation.checkpoints import training_config
from fairseq_plugins.fairseq_patches.checkpoints import other_flags
from fairseq_plugins.fairseq_patches.generation import languages_of
from fairseq_plugins.models.checkpoints import check_checkpoints, read_state
from fairseq_plugins.optim.column_norm import constrain_mean
from fairseq_plugins.options import UserError, flag_of

TRAINING_FLAGS = ("arch", "rnn_cell", "output_layer", "output_gate")
"""Flags of a model that are equal in all checkpoints of a run; the shapes of the weights may not show them."""

OF_ONE_CHECKPOINT = ("last_optimizer_state", "ema", "ema_fp32_params")
"""Entries that belong to the weights of one checkpoint, so a mean has none; the last two are in ``extra_state``."""

AVERAGED = "averaged_checkpoints"
"""Key of the list of averaged files, each with its number of updates."""

PROGRESS = ("warmed_up",)
"""Last parts of the names of buffers that count progress; a mean has those of the latest checkpoint."""

Weights = Dict[str, Tensor]
"""Weights of a model by name."""


def average_checkpoints(paths: Sequence[Path], *, show_progress: bool) -> Dict[str, Any]:
    """A checkpoint with the mean of the weights of several, summed in float64, and the flags of the latest of them.

    The column norm constraint of ``--column-norm`` holds for the mean, too. The checkpoint has no optimiser state. Its
    ``averaged_checkpoints`` are the files and their numbers of updates. Raises UserError if there are fewer than two, a
    file is missing, unreadable or refused, a weight is not finite, two files are of the same update, one is a mean
    itself, or they are of different vocabularies, architectures or seeds.
    """
    if len(paths) < 2:
        raise UserError(f"a mean of {len(paths)} checkpoint is that checkpoint: give two or more")
    check_checkpoints(paths)
    total: Weights = {}
    fixed: Weights = {}
    origins: Dict[int, Path] = {}
    flags: Dict[str, Any] = {}
    model: Any = None
    latest: Dict[str, Any] = {}
    for path in tqdm(paths, "averaging", unit="checkpoint", disable=not show_progress):
        state = read_state(path)
        if AVERAGED in state:
            parts = " ".join(name for name, _ in state[AVERAGED])
            raise UserError(f"{path} is a mean itself, whose parts would weigh less: give those in its place: {parts}")
        weights: Weights = state["model"]
        num_updates: int = state["optimizer_history"][-1]["num_updates"]
        if not origins:
            flags, model = _flags(state), training_config(state).model
            total = {name: torch.zeros_like(weight, dtype=torch.float64) for name, weight in weights.items()}
            fixed = {name: weight for name, weight in weights.items() if _may_be_fixed(name, weight)}
        else:
            _check_flags(_flags(state), flags, path, paths[0])
            if found := other_flags(model, training_config(state).model, owner=str(paths[0])):
                raise UserError(f"{path} was trained {found[0]}: give checkpoints of one training")
            if num_updates in origins:
                raise UserError(
                    f"{path} is of update {num_updates:,}, as {origins[num_updates]} is: give each one once"
                )
        _check_shapes(weights, total, path, paths[0])
        for name, weight in weights.items():
            total[name] += weight
        fixed = _still_fixed(weights, fixed, path, paths[0])
        origins[num_updates] = path
        if num_updates == max(origins):
            latest = state
    fixed |= {name: weight for name, weight in latest["model"].items() if _is_progress(name)}
    means = {name: fixed.get(name, weight / len(paths)) for name, weight in total.items()}
    constrain_mean(means, latest["model"], length=getattr(training_config(latest).model, "column_norm", 0.0))
    means = {name: weight.to(latest["model"][name].dtype) for name, weight in means.items()}
    config = latest["cfg"]
    return {
        **without(OF_ONE_CHECKPOINT, latest),
        "cfg": None if config is None else OmegaConf.to_container(config, resolve=True, enum_to_str=True),
        "model": _tied_as(latest["model"], means),
        "extra_state": without(OF_ONE_CHECKPOINT, latest["extra_state"]),
        AVERAGED: [(str(path), num_updates) for num_updates, path in sorted(origins.items())],
    }


def without(names: Sequence[str], state: Dict[str, Any]) -> Dict[str, Any]:
    return {name: part for name, part in state.items() if name not in names}


def _flags(state: Dict[str, Any]) -> Dict[str, Any]:
    """Values by flag that are equal within a run."""
    config = training_config(state)
    model = {flag_of(name): getattr(config.model, name, None) for name in TRAINING_FLAGS}
    languages = dict(zip(("--source-lang", "--target-lang"), languages_of(config.task)))
    return {**model, **languages, "--seed": config.common.seed}


def _check_flags(flags: Dict[str, Any], expected: Dict[str, Any], path: Path, first: Path) -> None:
    for name, value in flags.items():
        if value != expected[name]:
            raise UserError(
                f"{path} was trained with {name} {value}, {first} with {name} {expected[name]}: give checkpoints of "
                "one training"
            )


def _check_shapes(weights: Weights, expected: Weights, path: Path, first: Path) -> None:
    differing = sorted(weights.keys() ^ expected.keys())
    differing += [name for name, weight in weights.items() if name in expected and weight.shape != expected[name].shape]
    if differing:
        raise UserError(
            f"{path} holds another model than {first}, they differ in {differing[0]}: give checkpoints of one training"
        )


def _is_whole(weight: Tensor) -> bool:
    """Whether all numbers are integers, as those of vocabularies in a checkpoint are."""
    return not weight.is_floating_point() or bool((weight == weight.round()).all())


def _is_progress(name: str) -> bool:
    return name.rpartition(".")[2] in PROGRESS


def _may_be_fixed(name: str, weight: Tensor) -> bool:
    return _is_whole(weight) and not _is_progress(name)


def _still_fixed(weights: Weights, fixed: Weights, path: Path, first: Path) -> Weights:
    """The buffers that no update changes, among the candidates ``fixed``: integers in all checkpoints so far.

    A weight may be integral before its first update, for example zero, and is dropped here afterwards.
    """
    still = {name: values for name, values in fixed.items() if _is_whole(weights[name])}
    for name, values in still.items():
        if not torch.equal(weights[name], values):
            what = "vocabularies" if name.endswith("vocabulary.digest") else name
            raise UserError(f"{path} and {first} differ in {what}: give checkpoints of one training")
    return still


def _tied_as(weights: Weights, means: Weights) -> Weights:
    """The means, as one tensor where several names of ``weights`` are one tensor."""
    first: Dict[Tuple[int, torch.Size, Tuple[int, ...]], str] = {}
    memory = {name: (weight.data_ptr(), weight.shape, weight.stride()) for name, weight in weights.items()}
    return {name: means[first.setdefault(block, name)] for name, block in memory.items()}
