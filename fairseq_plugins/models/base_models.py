"""Trained language models that another model is built on: read from their checkpoints, or built anew from its own."""

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional

from fairseq_plugins.data.file_digest import file_digest
from fairseq_plugins.data.text_task import TextTask
from fairseq_plugins.flags.input_paths import listed_paths
from fairseq_plugins.host.checkpoint_fit import building_model
from fairseq_plugins.models.base_model_checkpoints import BaseFlags, build_base_model, read_base_model
from fairseq_plugins.models.checkpoint_files import check_checkpoints
from fairseq_plugins.models.gated_decoder import BaseWeights
from fairseq_plugins.models.recurrent_lm import RecurrentLanguageModel
from fairseq_plugins.models.resumed_gate import FLAGS_IN_CHECKPOINT, check_resumed, resumed_gate

_NO_PATH = "--base-model: give the checkpoint of a trained language model, or several joined by colons"


@dataclass(frozen=True)
class BaseModels:
    """What a model is built on.

    Attributes:
        models: in the order of ``--base-model``.
        weights: "read" from the models' own checkpoints, or "awaited", where those of the model that is built on them
            bring theirs.
    """

    models: List[RecurrentLanguageModel]
    weights: BaseWeights


def base_models(args: Namespace, task: TextTask, *, overrides: BaseFlags) -> BaseModels:
    """The models that ``args`` name, for the task's dictionary.

    A training reads ``args.base_model``, checkpoints joined by colons, and keeps their flags in ``args``. Where
    ``args`` are a checkpoint's they hold these flags: the models are built by them and await the weights of the
    checkpoint. So does a training that is resumed; its files are compared with its checkpoint, and may be gone.

    Args:
        args: flags of the model that is built on them.
        task: whose dictionary they read.
        overrides: flags that are other than in the models' trainings.

    Raises:
        ValueError: if no model is named, one is named twice, a checkpoint is missing, damaged, of another vocabulary,
            or holds another kind of model, or a training that is resumed has other base models.
    """
    kept: Optional[List[BaseFlags]] = getattr(args, FLAGS_IN_CHECKPOINT, None)
    if kept is None:
        paths = _paths(args)
        resumed = resumed_gate(args)
        if resumed is None:
            return _read_models(paths, args, task, overrides)
        check_resumed(resumed, paths, task)
        kept = resumed.flags
        setattr(args, FLAGS_IN_CHECKPOINT, kept)
        with building_model(resumed.path, {"model": resumed.weights}):
            return BaseModels([build_base_model(flags, task, overrides) for flags in kept], weights="awaited")
    return BaseModels([build_base_model(flags, task, overrides) for flags in kept], weights="awaited")


def _paths(args: Namespace) -> List[str]:
    """The checkpoints that ``--base-model`` names; none where it is not given."""
    given: str = getattr(args, "base_model", None) or ""
    paths = listed_paths(given) if given else []
    if not all(paths):
        raise ValueError(_NO_PATH)
    files = [Path(path).resolve() for path in paths]
    for n, path in enumerate(paths):
        if files[n] in files[:n]:
            raise ValueError(f"--base-model: {path} is given twice; give each model of an ensemble once")
    digests = [file_digest(file) if len(paths) > 1 and file.is_file() else path for file, path in zip(files, paths)]
    for n, path in enumerate(paths):
        if digests[n] in digests[:n]:
            same = paths[digests.index(digests[n])]
            raise ValueError(f"--base-model: {path} is a copy of {same}; give each model of an ensemble once")
    return paths


def _read_models(paths: List[str], args: Namespace, task: TextTask, overrides: BaseFlags) -> BaseModels:
    """The models of checkpoints with their weights; keeps their flags in ``args``."""
    if not paths:
        raise ValueError(_NO_PATH)
    check_checkpoints(paths)
    read = [read_base_model(path, task, overrides) for path in paths]
    setattr(args, FLAGS_IN_CHECKPOINT, [flags for flags, _ in read])
    return BaseModels([model for _, model in read], weights="read")
