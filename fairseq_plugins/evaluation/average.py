"""The mean of the weights of several checkpoints of one run (Vaswani et al. 2017, section 6.1)."""

from pathlib import Path
from typing import Any, Dict, Sequence, Tuple

import torch
from omegaconf import OmegaConf
from torch import Tensor

from fairseq_plugins.console import progress
from fairseq_plugins.data.pairs import languages_of
from fairseq_plugins.evaluation.checkpoints import training_config
from fairseq_plugins.fairseq_patches.checkpoints import other_flags
from fairseq_plugins.models.checkpoints import check_checkpoints, read_state
from fairseq_plugins.optim.column_norm import constrain_mean
from fairseq_plugins.options import UserError

OF_ONE_CHECKPOINT = ("last_optimizer_state", "ema", "ema_fp32_params")
"""Entries of a checkpoint that a mean does not have; the last two are in ``extra_state``."""

AVERAGED = "averaged_checkpoints"
"""Key of the list of averaged files, each with its number of updates."""

Weights = Dict[str, Tensor]
"""Weights of a model by name."""


def average_checkpoints(paths: Sequence[Path]) -> Dict[str, Any]:
    """A checkpoint with the mean weights of several checkpoints, summed in float64, and the flags of the latest one.

    The column norm constraint of ``--column-norm`` holds for the mean, too. The checkpoint has no optimiser state. Its
    ``averaged_checkpoints`` are the files and their numbers of updates. Raises UserError if there are fewer than two, a
    file is missing, unreadable or refused, a weight is not finite, two files are of the same update, one is a mean
    itself, or they are of different vocabularies, architectures or seeds.
    """
    if len(paths) < 2:
        raise UserError(f"a mean of {len(paths)} checkpoint is that checkpoint: give two or more")
    check_checkpoints(paths)
    total: Weights = {}
    origins: Dict[int, Path] = {}
    latest: Dict[str, Any] = {}
    for path in progress(paths, desc="averaging", unit="checkpoint"):
        state = read_state(path)
        if AVERAGED in state:
            parts = " ".join(name for name, _ in state[AVERAGED])
            raise UserError(f"{path} is itself a mean, and its parts would weigh less: give the parts instead: {parts}")
        weights: Weights = state["model"]
        num_updates: int = state["optimizer_history"][-1]["num_updates"]
        if latest:
            _check_same_run(state, path, latest, origins[max(origins)])
            if num_updates in origins:
                raise UserError(
                    f"{path} and {origins[num_updates]} are both of update {num_updates:,}: give one of them"
                )
        else:
            total = {name: torch.zeros_like(weight, dtype=torch.float64) for name, weight in weights.items()}
        for name, weight in weights.items():
            total[name] += weight
        origins[num_updates] = path
        if num_updates == max(origins):
            latest = state
    means = {name: weight / len(paths) for name, weight in total.items()}  # digests are equal, so they do not change
    means |= {name: weight for name, weight in latest["model"].items() if name.endswith("warmed_up")}
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
    languages = dict(zip(("--source-lang", "--target-lang"), languages_of(config.task)))
    return {"--arch": getattr(config.model, "arch", None), **languages, "--seed": config.common.seed}


def _check_same_run(state: Dict[str, Any], path: Path, other: Dict[str, Any], other_path: Path) -> None:
    remedy = "give checkpoints of one run"
    expected = _flags(other)
    for name, value in _flags(state).items():
        if value != expected[name]:
            raise UserError(
                f"{path} was trained with {name} {value}, {other_path} with {name} {expected[name]}: {remedy}"
            )
    if found := other_flags(training_config(other).model, training_config(state).model, owner=str(other_path)):
        raise UserError(f"{path} was trained {found[0]}: {remedy}")
    weights, of_other = state["model"], other["model"]
    differing = sorted(weights.keys() ^ of_other.keys())
    differing += [name for name in weights if name in of_other and weights[name].shape != of_other[name].shape]
    if differing:
        raise UserError(f"{path} holds another model than {other_path}, they differ in {differing[0]}: {remedy}")
    digests = [name for name in weights if name.endswith("vocabulary.digest")]
    if not all(torch.equal(weights[name], of_other[name]) for name in digests):
        raise UserError(f"{path} and {other_path} differ in vocabularies: {remedy}")


def _tied_as(weights: Weights, means: Weights) -> Weights:
    """The means, in which names share a tensor if they share one in ``weights``."""
    first: Dict[Tuple[int, torch.Size, Tuple[int, ...]], str] = {}
    memory = {name: (weight.data_ptr(), weight.shape, weight.stride()) for name, weight in weights.items()}
    return {name: means[first.setdefault(block, name)] for name, block in memory.items()}
